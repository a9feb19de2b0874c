"""CSV: records are cut at their true ends whatever stands within quotes, and all ranks agree on what a text means."""

import csv
import gzip
import io
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opened_csv import opened
from peak_memory import peak_of

from matex_tf.readers import DataSet, ReaderError
from matex_tf.readers.csv import records
from matex_tf.readers.csv.dialect import Dialect
from matex_tf.readers.csv.headers import sniff_delimiter
from matex_tf.readers.csv.marks import Marks

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(path, text, packed=False):
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


texts = st.text(alphabet="ab,\"\n\r é'", max_size=6)
tables = st.lists(st.tuples(texts, st.integers(-99, 99)), min_size=1, max_size=40)
styles = st.fixed_dictionaries(
    {
        "newline": st.sampled_from(["\n", "\r\n"]),
        "bom": st.sampled_from(["", "\ufeff"]),
        "header": st.booleans(),
        "last": st.booleans(),
        "blank": st.booleans(),
    }
)


@relaxed
@given(
    tables,
    styles,
    st.integers(1, 6),
    st.integers(1, 64),
    st.integers(1, 40),
    st.booleans(),
    st.lists(st.integers(0, 40)),
)
def test_any_table_under_any_number_of_ranks(tmp_path, table, style, size, stride, piece, packed, cuts):
    # A carriage return alone ends a line for some and not for others; within quotes it is a letter like others.
    rows = [(f"t{text}", number) for text, number in table]
    cuts = [0, *sorted({cut for cut in cuts if 0 < cut < len(rows)}), len(rows)]
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    for number, (first, last) in enumerate(zip(cuts, cuts[1:])):
        buffer = io.StringIO(newline="")
        writer = csv.writer(buffer, lineterminator=style["newline"], quoting=csv.QUOTE_NONNUMERIC)
        if style["header"]:
            writer.writerow(["text", "number"])
        for row in rows[first:last]:
            writer.writerow(row)
            if style["blank"]:
                buffer.write(style["newline"])
        text = style["bom"] + buffer.getvalue()
        write(folder / f"part-{number:02}.csv", text if style["last"] else text.rstrip("\r\n"), packed)
    path = str(folder / "part-*.csv")
    expected = sorted({text for text, _ in rows})
    with mock.patch.multiple(records, STRIDE=stride, PIECE=piece):
        readers = opened(path, size, labels=0, header=style["header"])
        for reader in readers:
            assert reader.count("training") == len(rows)
            (values,) = reader.categories.values()
            assert values == expected
        middle = len(rows) // 2
        for start, stop in ((0, len(rows)), (0, middle), (middle, len(rows)), (middle, middle + 1)):
            found = readers[-1].read("training", "data", start, stop)
            assert found[:, 0].tolist() == [number for _, number in rows[start:stop]]
            codes = readers[0].read("training", "labels", start, stop)
            assert [values[code] for code in codes] == [text for text, _ in rows[start:stop]]
        # What is parsed and kept in opening is the same, each record by one rank.
        kept = opened(path, size, keep=True, labels=0, header=style["header"])
        assert [reader.kept.counts for reader in kept] == [kept[0].kept.counts] * size
        assert [sum(map(len, reader.kept.rows["data"])) for reader in kept] == kept[0].kept.counts
        found = [array for reader in kept for array in reader.kept.rows["data"]]
        assert np.concatenate(found)[:, 0].tolist() == [number for _, number in rows]
        codes = np.concatenate([array for reader in kept for array in reader.kept.rows["labels"]])
        assert [expected[code] for code in codes] == [text for text, _ in rows]


@relaxed
@given(st.text(alphabet='ab",\n\r', max_size=60), st.integers(0, 60), st.integers(1, 5))
def test_parts_find_what_the_whole_has(text, cut, piece):
    data = text.encode()

    def read(start, stop):
        return data[max(0, start) : stop]

    cuts = sorted({0, min(cut, len(data)), min(2 * cut, len(data)), len(data)})
    whole = records.join_parts([records.search_records(read, 0, len(data), Marks())], 0, len(data), read)
    parts = [records.search_records(read, a, b, Marks(), piece=piece) for a, b in zip(cuts, cuts[1:])]
    joined = records.join_parts(parts, 0, len(data), read)
    assert joined == whole


def numbers(path, rows, columns=3, **style):
    table = np.arange(rows * columns).reshape(rows, columns) / 4
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, **style)
        writer.writerow([f"c{number}" for number in range(columns)])
        writer.writerows(table.tolist())
    return table


@pytest.mark.parametrize("size", (1, 2, 3, 7))
@pytest.mark.parametrize("delimiter", (",", ";", "\t", "|"))
def test_shares_by_hand(tmp_path, size, delimiter):
    table = numbers(tmp_path / "a.csv", 5000, delimiter=delimiter)
    for distribution in ({}, {"distribution": "cyclic"}, {"distribution": "batch", "batch_size": 64}):
        shares = [DataSet(tmp_path / "a.csv", labels="c1", rank=r, size=size, **distribution) for r in range(size)]
        for share in shares:
            np.testing.assert_array_equal(share.training_data, table[share.local_slice][:, [0, 2]])
            np.testing.assert_array_equal(share.training_labels, table[share.local_slice][:, 1])


@pytest.mark.parametrize(
    "line, values",
    [("1,\t2,\t3", [1, 2, 3]), ("1, 2\t,3", [1, 2, 3]), ("1|2|3", [1, 2, 3]), ("1,2,3", [1, 2, 3])]
    + [("1,234;2;3", ["1,234", 2, 3]), ("1,5\t2,5", ["1,5", "2,5"]), ('"1;2",3', ["1;2", 3]), ('"a,b";"c";3', ["c", 3])]
    + [('"a\tb\nc",2', [2]), ("1,,3", [1, 3]), ("1,2,", [1, 2]), ("-1,-2\t,3", [-1, -2, 3]), ("NA,2", [2])],
)
def test_the_delimiter_that_the_first_line_shows(tmp_path, line, values):
    delimiter = sniff_delimiter(tmp_path / "a.csv", line.encode() + b"\n", Dialect())
    found = next(csv.reader(io.StringIO(line), delimiter=delimiter))
    assert set(map(str, values)) <= {value.strip() for value in found}


def test_a_file_whose_values_are_padded_with_tabs(tmp_path):
    data = DataSet("CSV", write(tmp_path / "a.csv", "1,\t2,\t3\n4,\t5,\t6\n"), header=False, rank=0, size=1)
    assert data.training_data.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_types_and_columns(tmp_path):
    path = write(tmp_path / "a.csv", "id,x,flag,kind,y\n1,0.5,true,b,3\n2,1.5,false,a,4\n3,2.5,true,b,5\n")
    data = DataSet("CSV", path, labels="y", rank=0, size=1)
    assert data.training_data.tolist() == [[1, 0.5, 1, 1], [2, 1.5, 0, 0], [3, 2.5, 1, 1]]
    assert data.training_data.dtype == np.float64 and data.training_labels.dtype == np.int64
    assert data.categories == {"kind": ["a", "b"]}
    data = DataSet("CSV", path, labels=["y", "kind"], columns=["x", 0], dtype="float32", rank=0, size=1)
    assert data.training_data.tolist() == [[0.5, 1], [1.5, 2], [2.5, 3]] and data.training_data.dtype == np.float32
    assert data.training_labels.tolist() == [[3, 1], [4, 0], [5, 1]]
    data = DataSet("CSV", path, labels=-1, columns="id", dtype={"id": "uint8", "y": "float32"}, rank=0, size=1)
    assert data.training_data.dtype == np.uint8 and data.training_labels.dtype == np.float32
    with pytest.raises(ValueError, match="has no labels; labels= names them"):
        DataSet("CSV", path, rank=0, size=1).training_labels  # noqa: B018


def test_a_record_longer_than_the_head(tmp_path):
    path = write(tmp_path / "a.csv", "a,b\n" + '"' + "x" * 3_000_000 + '",1\n' + "y,2\n" * 5)
    for size in (1, 3):
        shares = [DataSet("CSV", path, labels="a", dtype="float16", rank=rank, size=size) for rank in range(size)]
        assert np.concatenate([share.training_data for share in shares]).tolist() == [[1]] + [[2]] * 5
        assert shares[0].training_data.dtype == np.float16
        assert np.concatenate([share.training_labels for share in shares]).tolist() == [0, 1, 1, 1, 1, 1]


def test_text_among_numbers_is_an_error_and_text_can_be_asked_for(tmp_path):
    path = write(tmp_path / "a.csv", "code,y\n10,1\n20,2\nB3,3\n")
    with pytest.raises(ReaderError, match=r"a.csv, line 4, column 'code': .*found 'B3'.*dtype=\{'code': str\}"):
        DataSet("CSV", path, rank=0, size=1)
    data = DataSet("CSV", path, labels="y", dtype={"code": str}, rank=0, size=1)
    assert data.categories == {"code": ["10", "20", "B3"]}
    assert data.training_data.tolist() == [[0], [1], [2]] and data.training_data.dtype == np.float64
    path = write(tmp_path / "b.csv", "code,n\n1,1\n2,2\n3,x\n4,y\n")
    assert DataSet("CSV", path, rank=0, size=1).categories == {"n": ["1", "2", "x", "y"]}
    path = write(tmp_path / "c.csv", "".join(f"t{i},{i}\n" for i in range(300)))
    with pytest.raises(ReaderError, match="at most 256 different texts in column '0'.*uint8; found 300"):
        DataSet("CSV", path, header=False, labels=1, dtype="uint8", rank=0, size=1)
    with pytest.raises(ValueError, match=r"missing=0.5 cannot be used for column 'n'"):
        DataSet("CSV", write(tmp_path / "d.csv", "x,n\n1,2\n3,\n"), labels="n", missing=0.5, rank=0, size=1)
    path = write(tmp_path / "e.csv", "x,kind\n1,a\n2,\n")
    for missing in (0.5, 256, -1, float("inf")):
        with pytest.raises(ValueError, match=rf"missing={missing} cannot be used for column 'kind' of .*0 to 255"):
            DataSet("CSV", path, dtype="uint8", missing=missing, rank=0, size=1).training_data  # noqa: B018
    data = DataSet("CSV", path, dtype="uint8", missing=255.0, rank=0, size=1)
    assert data.training_data.tolist() == [[1, 0], [2, 255]]


def test_standard_scaling_is_by_column(tmp_path):
    table = numbers(tmp_path / "a.csv", 500)
    data = DataSet("CSV", tmp_path / "a.csv", normalize="standard", test_fraction=0.2, rank=0, size=1)
    expected = (table - table[:400].mean(axis=0)) / table[:400].std(axis=0)
    np.testing.assert_allclose(data.training_data, expected[:400])
    np.testing.assert_allclose(data.testing_data, expected[400:])
    windows = {"window": 3, "normalize": "standard", "validation_fraction": 0.2, "split": "spread"}
    data = DataSet("CSV", tmp_path / "a.csv", rank=0, size=1, **windows)
    rows = np.asarray(data.training_data).reshape(-1, table.shape[1])
    np.testing.assert_allclose(
        [rows.mean(axis=0), rows.std(axis=0)], [np.zeros(len(rows[0])), np.ones(len(rows[0]))], atol=1e-6
    )


def test_missing_values(tmp_path):
    path = write(tmp_path / "a.csv", "x,n,kind\n1,1,a\nNA,2,\n3,,b\n")

    def share(**options):
        return DataSet("CSV", path, rank=0, size=1, **options)

    with pytest.raises(ReaderError, match=r"a.csv, line 3, column 'x': expected a number, found a missing value"):
        share(columns=["x"]).training_data  # noqa: B018
    with pytest.raises(ReaderError, match=r"line 4, column 'n': expected a number, found a missing value"):
        share(labels="n", columns=["x"]).training_labels  # noqa: B018
    with pytest.raises(ReaderError, match=r"line 3, column 'kind'"):
        share(labels="kind", columns=["x"]).training_labels  # noqa: B018
    filled = share(labels="kind", missing=7)
    assert filled.training_data.tolist() == [[1, 1], [7, 2], [3, 7]]
    assert filled.training_labels.tolist() == [0, 7, 1]
    kept = share(labels="kind", missing="nan")
    assert np.isnan(kept.training_data).tolist() == [[False, False], [True, False], [False, True]]
    assert np.isnan(kept.training_labels).tolist() == [False, True, False]


def failing(path, match, error=ReaderError, **options):
    with pytest.raises(error, match=match):
        DataSet("CSV", path, rank=0, size=1, **options).training_data  # noqa: B018


def test_what_is_wrong_is_named_with_its_line_and_column(tmp_path):
    lines = ["name,age,height"] + [f"n{i},{i},{i / 2}" for i in range(200_000)]
    good = "\n".join(lines) + "\n"
    lines[150_000] = "n,old,1.5"
    options = {"columns": ["age", "height"]}
    failing(
        write(tmp_path / "a.csv", "\n".join(lines)),
        "a.csv, line 150001, column 'age': expected a number .*'old'",
        **options,
    )
    lines[150_000] = "n,1"
    failing(write(tmp_path / "c.csv", "\n".join(lines)), "line 150001: expected 3 values, found 2", **options)
    lines[150_000] = 'n,1,"2'
    failing(write(tmp_path / "d.csv", "\n".join(lines)), "every quote to be closed.*quote=None", **options)
    lines[150_000] = "n,1,2\r3,1,2"
    failing(write(tmp_path / "e.csv", "\n".join(lines)), "carriage return|expected 3 values|expected", **options)
    (tmp_path / "f.csv").write_bytes(good.encode()[:-3] + b"\xff\n")
    failing(tmp_path / "f.csv", "line 200001", **options)
    failing(tmp_path / "g.csv", "found none.*near names", FileNotFoundError)
    failing(
        tmp_path / "a.csv",
        "column 'heigth', found none; did you mean 'height'.*columns are name, age, height",
        labels="heigth",
    )
    failing(tmp_path / "a.csv", "column 3, found none", labels=3)
    failing(write(tmp_path / "l.csv", "a,b\r1,2\r"), "l.csv: expected lines that end with a newline, found carriage")
    failing(write(tmp_path / "m.csv", "a;b\n1,5;2\n"), "line 2, column 'a': .*found '1,5'; .*str")
    failing(tmp_path / "m.csv", "delimiter has to be one ASCII character; given '::'", ValueError, delimiter="::")
    failing(write(tmp_path / "h.csv", ""), "found only empty lines")
    failing(write(tmp_path / "i.csv", "a,b\n"), "expected at least one training row")
    failing(write(tmp_path / "j.csv", "a,a\n1,2\n"), "expected one column 'a', found several", labels="a")
    failing(str(tmp_path / "[aj].csv"), "j.csv: expected the header of .*a.csv, name, age, height; found a, a")
    table = write(tmp_path / "n.csv", "a,b\n1,inf\n2,70000\n3,1e39\n")
    for dtype, line in (("float16", 3), ("float32", 4)):
        for memory in (None, 0):
            match = f"n.csv, line {line}, column 'b': .* is too large for dtype='{dtype}'; give a wider one"
            failing(table, match, dtype=dtype, memory=memory)
    packed = gzip.compress(good.encode())
    (tmp_path / "k.csv.gz").write_bytes(packed[: len(packed) // 2])
    failing(tmp_path / "k.csv.gz", "truncated or damaged: expected gzip data", **options)


def test_labels_that_begin_as_integers(tmp_path):
    lines = ["x,y"] + ["1,2"] * 400_000 + ["1,2.5"]
    path = write(tmp_path / "a.csv", "\n".join(lines))
    with pytest.raises(
        ReaderError, match=r"line 400002, column 'y': .*found '2.5'; .*by its first MiB.*dtype=\{'y': \"float64\"\}"
    ):
        DataSet("CSV", path, labels="y", rank=0, size=1).training_labels  # noqa: B018
    data = DataSet("CSV", path, labels="y", dtype={"y": "float64"}, rank=0, size=1)
    assert data.training_labels[-1] == 2.5


def second_half(path):
    return DataSet(path, rank=1, size=2).training_data


def test_a_share_costs_its_memory_and_little_more(tmp_path):
    table = numbers(tmp_path / "a.csv", 500_000, 6)
    rows = second_half(tmp_path / "a.csv")
    np.testing.assert_array_equal(rows, table[250_000:])
    assert peak_of(second_half, tmp_path / "a.csv") < 1.3 * rows.nbytes + (16 << 20)


def test_a_gzipped_file_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = write(tmp_path / "a.csv.gz", "x,y\n" + "1,2\n" * 3000, packed=True)
    readers = opened(path, 3, labels="y")
    assert [len(reader.read("training", "data", 0, 3000)) for reader in readers] == [3000] * 3
    assert [file.name for file in Path(tmp_path).iterdir()] == ["a.csv.gz"]
