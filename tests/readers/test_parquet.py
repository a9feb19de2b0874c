"""Parquet: every rank's rows are those that pyarrow reads, whatever the types, the row groups and the files."""

import datetime
import decimal
import os
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from opened_csv import opened

import launch
from matex_tf.readers import DataSet, ReaderError
from matex_tf.readers.base.formats import Ranks
from matex_tf.readers.rows import streaming
from matex_tf.readers.typed.parquet import Parquet
from matex_tf.runtime import notes

ROWS = 53
random = np.random.default_rng(0)
X = random.standard_normal((ROWS, 3)).astype("f4")
V = random.standard_normal((ROWS, 4))
Y = (np.arange(ROWS) * 7 % 5).astype("i8")
TEXTS = np.array(["b", "a", "é", "cc"])[np.arange(ROWS) % 4]
CODES = np.searchsorted(np.unique(TEXTS), TEXTS)


def table(start=0, stop=ROWS):
    columns = {name: X[start:stop, place] for place, name in enumerate(("a", "b.c", "d"))}
    columns["v"] = pa.array(V[start:stop].tolist(), pa.list_(pa.float64()))
    columns["text"] = pa.array(TEXTS[start:stop]).dictionary_encode()
    columns["y"] = Y[start:stop]
    return pa.table(columns)


def write(path, columns, **options):
    pq.write_table(pa.table(columns), path, **options)
    return path


def alone(path, **options):
    return DataSet("PARQUET", path, rank=0, size=1, **options)


def gathered(path, size, field="training_data", **options):
    shares = [DataSet("PARQUET", path, rank=rank, size=size, **options) for rank in range(size)]
    rows = [getattr(share, field) for share in shares]
    result = np.zeros((shares[0].global_size, *rows[0].shape[1:]), rows[0].dtype)
    for share, part in zip(shares, rows, strict=True):
        result[share.local_slice] = part
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parquet")
    pq.write_table(table(), folder / "one.parquet", row_group_size=5)
    pq.write_table(table(), folder / "whole.parquet")
    for number, (start, stop) in enumerate(((0, 9), (9, 9), (9, 10), (10, ROWS))):
        pq.write_table(table(start, stop), folder / f"part-{number}.parquet", row_group_size=7)
    return folder


@pytest.mark.parametrize("size", (1, 2, 3, 60))
@pytest.mark.parametrize("name", ("one.parquet", "whole.parquet", "part-*.parquet"))
def test_the_rows_of_all_ranks_are_those_of_pyarrow(folder, name, size):
    path = str(folder / name)
    expected = pq.read_table(folder / "one.parquet", columns=["a", "b.c", "d"]).to_pandas().to_numpy()
    options = {"columns": ["a", "b.c", "d"], "labels": "y"}
    for distribution in ({}, {"distribution": "cyclic"}, {"distribution": "batch", "batch_size": 7}):
        found = gathered(path, size, **options, **distribution)
        assert found.dtype == expected.dtype == np.float32
        np.testing.assert_array_equal(found, expected)
        labels = gathered(path, size, "training_labels", **options, **distribution)
        assert labels.dtype == np.int64
        np.testing.assert_array_equal(labels, Y)


@pytest.mark.parametrize("keep", (True, False))
@pytest.mark.parametrize("name", ("one.parquet", "whole.parquet", "part-*.parquet"))
def test_ranks_that_open_it_together_read_each_row_once(folder, name, keep):
    for size in (1, 2, 3, 9):
        ranks = opened(str(folder / name), size, keep=keep, kind=Parquet, labels="text")
        assert {one.count("training") for one in ranks} == {ROWS}
        assert all(one.categories == {"text": sorted(set(TEXTS.tolist()))} for one in ranks)
        if keep:
            held = [one.kept for one in ranks]
            assert len({tuple(one.counts) for one in held}) == 1 and sum(held[0].counts) == ROWS
            rows = {field: np.concatenate([row for one in held for row in one.rows[field]]) for field in held[0].rows}
        else:
            assert not any(one.kept for one in ranks)
            rows = {field: ranks[-1].read("training", field, 0, ROWS) for field in ("data", "labels")}
        np.testing.assert_array_equal(rows["labels"], CODES)
        np.testing.assert_array_equal(rows["data"], np.concatenate([X, V, Y[:, None]], axis=1))


def test_parts_are_cut_where_row_groups_begin(folder):
    (one,) = opened(folder / "one.parquet", 1, kind=Parquet)
    for size in (1, 2, 3, 4, 8, 20):
        parts = one.list_parts(Ranks(0, size, ["host"] * size))
        assert [start for start, _ in parts[1:]] == [stop for _, stop in parts[:-1]]
        assert (parts[0][0], parts[-1][1]) == (0, ROWS)
        assert all(start % 5 == 0 for start, _ in parts if start < ROWS)
        assert all(stop - start <= ROWS / size + 5 for start, stop in parts)


def test_large_row_groups_are_told(folder, monkeypatch):
    said = []
    monkeypatch.setattr(notes, "print_note", said.append)
    opened(folder / "one.parquet", 3, kind=Parquet)
    assert not said
    opened(folder / "whole.parquet", 3, kind=Parquet)
    (note,) = set(said)
    assert "whole.parquet" in note and "53 of 53 rows" in note and "row_group_size=4" in note


def test_streams_go_on_where_they_were(folder, monkeypatch):
    (one,) = opened(folder / "whole.parquet", 1, kind=Parquet, columns="v")
    real, calls = pq.ParquetFile.iter_batches, []
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *a, **k: calls.append(a) or real(*a, **k))
    pieces = [one.read("training", "data", start, min(start + 6, ROWS)) for start in range(0, ROWS, 6)]
    np.testing.assert_array_equal(np.concatenate(pieces), V)
    assert len(calls) == 1
    np.testing.assert_array_equal(one.read("training", "data", 3, 8), V[3:8])
    assert len(calls) == 2


def test_shuffled_streams_read_each_row_group_once(tmp_path, monkeypatch):
    rows, group = 3000, 60
    path = write(tmp_path / "a.parquet", {"x": np.arange(rows), "y": -np.arange(rows)}, row_group_size=group)
    monkeypatch.setattr(streaming, "PIECE_BYTES", 4 * 7 * 16)  # pieces of 7 rows
    real, calls = pq.ParquetFile.iter_batches, []
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *a, **k: calls.append(a) or real(*a, **k))
    data = DataSet("PARQUET", path, labels="y", memory=0, rank=1, size=2)
    stream = data.as_dataset(50, shuffle=True, seed=1)
    before, orders = len(calls), []
    for _ in range(2):
        x, y = (np.concatenate(found) for found in zip(*stream.as_numpy_iterator(), strict=True))
        np.testing.assert_array_equal(x[:, 0], -y)
        assert sorted(x[:, 0].tolist()) == list(range(rows // 2, rows))
        orders.append(x[:, 0])
    assert len(calls) - before == 2 * 2 * rows // 2 // group
    assert not np.array_equal(*orders)
    near = np.mean([np.abs(np.diff(order)) < group for order in orders])
    assert near < 0.5, "rows of one row group follow each other"


TYPES = {
    "uint8": (pa.array([1, 2, 255], pa.uint8()), np.array([1, 2, 255], "u1")),
    "bool": (pa.array([True, False, True]), np.array([True, False, True])),
    "float16": (pa.array(np.array([1, 2, 0.5], "f2")), np.array([1, 2, 0.5], "f2")),
    "decimal": (pa.array([decimal.Decimal("1.25")] * 3, pa.decimal128(9, 2)), np.array([1.25] * 3)),
    "fixed lists": (pa.FixedSizeListArray.from_arrays(pa.array(np.arange(6)), 2), np.arange(6).reshape(3, 2)),
    "large lists": (pa.array([[1.5], [2], [3]], pa.large_list(pa.float32())), np.array([1.5, 2, 3], "f4")),
    "large text": (pa.array(["b", "a", "b"], pa.large_string()), np.array([1, 0, 1])),
    "bytes of text": (pa.array([b"b", b"a", b"b"]), np.array([1, 0, 1])),
}


@pytest.mark.parametrize("name", TYPES)
def test_types(tmp_path, name):
    column, expected = TYPES[name]
    path = write(tmp_path / "a.parquet", {"x": column, "z": [1.0, 2.0, 3.0]}, row_group_size=2)
    found = alone(path, columns="z", labels="x")
    assert found.training_labels.dtype == expected.dtype
    np.testing.assert_array_equal(found.training_labels, expected)
    found = alone(path, columns="x")
    np.testing.assert_array_equal(found.training_data, expected.reshape(3, -1))


def test_types_that_are_asked_for(tmp_path):
    day = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
    raw = [np.array([1, 2], "<u2").tobytes()] * 2
    columns = {"t": pa.array([day] * 2, pa.timestamp("s", "UTC")), "d": pa.array([day.date()] * 2), "zip": [10115, 99]}
    path = write(tmp_path / "a.parquet", {**columns, "raw": raw, "n": ["1.5", "2"]})
    assert alone(path, columns="t", dtype={"t": "int64"}).training_data[0, 0] == 1577836800000
    assert alone(path, columns="d", dtype={"d": "float64"}).training_data[0, 0] == 18262
    assert alone(path, columns="zip", dtype={"zip": str}).categories == {"zip": ["10115", "99"]}
    assert alone(path, columns="n", dtype={"n": "float32"}).training_data.tolist() == [[1.5], [2]]
    image = alone(path, columns="raw", dtype={"raw": "uint16"}, shape=(1, 2, 1)).training_data
    assert image.dtype == np.uint16 and image.tolist() == [[[[1], [2]]]] * 2
    texts = write(tmp_path / "b.parquet", {"one": [["b"], ["a"]], "two": [["b"], ["a", "b"]], "raw": [[b"ab"], [b"c"]]})
    assert alone(texts, columns="one").training_data.tolist() == [[1], [0]]
    with pytest.raises(ReaderError, match="expected one text a row in column 'two', found lists of them"):
        alone(texts, columns="two", missing=0)
    with pytest.raises(ReaderError, match="in column 'raw', or lists of numbers, found list<.*binary>"):
        alone(texts, columns="raw", dtype={"raw": "uint8"})
    for options, match in (
        ({"columns": "t"}, r"in column 't', found timestamp\[ms, tz=UTC\]; dtype=\{'t': 'int64'\}"),
        ({"columns": "zip", "dtype": {"zip": "uint8"}}, "row 0, column 'zip': expected a number that uint8.*10115"),
        ({"columns": "n"}, "found numbers as text"),
        ({"columns": "raw", "dtype": {"raw": "float64"}}, "column 'raw': expected bytes of whole numbers of float64"),
        ({"columns": "raw", "dtype": {"raw": "uint8"}, "shape": (3, 3)}, "expected 9 values in a row of data.*found 4"),
    ):
        with pytest.raises(ReaderError, match=match):
            alone(path, **options)


def test_values_that_a_dtype_does_not_hold(tmp_path):
    path = write(tmp_path / "a.parquet", {"f": [1.0, 1e300], "i": [1, 1 << 60], "b": [b"\xff\xfe", b"a"]})
    for options, match in (
        ({"columns": "f", "dtype": "float32"}, "row 1, column 'f': 1e.300 is too large for dtype='float32'"),
        ({"columns": "i", "dtype": "int32"}, "row 1, column 'i': expected a number that int32 holds"),
        ({"columns": "i", "dtype": {"i": "bool"}}, "column 'i' holds values of int64, which dtype='bool' cannot hold"),
        ({"columns": "b"}, "row 0, column 'b': expected text in UTF-8.*such as 'uint8'"),
    ):
        with pytest.raises(ReaderError, match=match):
            alone(path, **options)
    assert alone(path, columns="i", dtype="float32").training_data[1, 0] == np.float32(1 << 60)


def test_missing_values_and_lists_of_different_lengths(tmp_path):
    lists = [[1, 2], [3], [4, 5, 6], None, [7, None]]
    path = write(tmp_path / "a.parquet", {"i": [1, None, 3, 4, 5], "v": lists}, row_group_size=2)
    for size in (1, 2, 3):
        assert gathered(path, size, columns="i", missing=9).tolist() == [[1], [9], [3], [4], [5]]
        found = gathered(path, size, columns="v", missing=0)
        assert found.dtype == np.int64
        assert found.tolist() == [[1, 2, 0], [3, 0, 0], [4, 5, 6], [0, 0, 0], [7, 0, 0]]
        found = gathered(path, size, columns=["i", "v"], missing="nan")
        expected = [[1, 1, 2, np.nan], [np.nan, 3, np.nan, np.nan], [3, 4, 5, 6], [4] + [np.nan] * 3]
        np.testing.assert_array_equal(found, [*expected, [5, 7, np.nan, np.nan]])
    with pytest.raises(ReaderError, match="row 1, column 'i': expected a number, found a missing value. missing=0"):
        alone(path, columns="i")
    with pytest.raises(
        ReaderError, match="row 1, column 'v': expected 2 value.s., as in the first row, found 1. missing="
    ):
        alone(path, columns="v")
    path = write(tmp_path / "b.parquet", {"f": [1.0, None], "v": [[1.0, 2.0], [3.0, None]]})
    with pytest.raises(ReaderError, match="row 1, column 'f': expected a number, found a missing"):
        alone(path, columns=["v", "f"], labels="f").training_labels  # noqa: B018
    with pytest.raises(ReaderError, match="row 1, column 'v', element 1: expected a number, found a missing"):
        alone(path, columns=["f", "v"], missing=0, dtype="float32", shape=(3,))
        alone(path, columns="v").training_data  # noqa: B018


def test_what_is_wrong_is_named(tmp_path):
    path = write(tmp_path / "a-1.parquet", {"x": [1.0, 2.0], "y": [1, 2], "s": [{"k": 1}] * 2})
    columns = {"columns": "x", "labels": "y"}

    def failing(error, match, path, **options):
        with pytest.raises(error, match=match):
            alone(path, **options)

    failing(FileNotFoundError, "a-2.parquet: expected a file, found none.*near names", tmp_path / "a-2.parquet")
    failing(
        ReaderError, "expected a column 'xx', found none; did you mean 'x'.*columns are x, y, s", path, columns="xx"
    )
    failing(ReaderError, r"in column 's', or lists of numbers, found struct<k: int64>", path, labels="y")
    failing(TypeError, "expected shape to be the shape of a row", path, **columns, shape="28x28")
    failing(TypeError, "no option 'sample'; its options are labels, columns, dtype, shape, memory", path, sample=1)
    failing(ReaderError, "wrong magic number: expected a Parquet file.*found", __file__)
    content = path.read_bytes()
    (tmp_path / "cut.parquet").write_bytes(content[:-20])
    failing(ReaderError, "cut.parquet: truncated or damaged", tmp_path / "cut.parquet", **columns)
    (tmp_path / "empty.parquet").write_bytes(b"")
    failing(ReaderError, "empty.parquet: wrong magic number.*found nothing", tmp_path / "empty.parquet", **columns)
    none = write(tmp_path / "none.parquet", {"x": pa.array([], pa.float64()), "y": pa.array([], pa.int64())})
    failing(ReaderError, "expected at least one training row, found none", none, **columns)
    write(tmp_path / "a-2.parquet", {"x": [1.0], "y": [1.0]})
    failing(
        ReaderError,
        "a-2.parquet: expected int64 in column 'y', as in .*a-1.parquet; found double",
        *[str(tmp_path / "a-*.parquet")],
        **columns,
    )
    write(tmp_path / "a-2.parquet", {"y": [1], "x": [1.0]})
    failing(ReaderError, "a-2.parquet: expected the columns of .*a-1.parquet", str(tmp_path / "a-*.parquet"), **columns)


@pytest.mark.parametrize("how", ("written again", "moved there"))
def test_a_file_that_changes_while_it_is_in_use_is_an_error(tmp_path, how):
    path = write(tmp_path / "a.parquet", {"x": np.arange(6.0)})
    data = DataSet("PARQUET", path, rank=1, size=2)
    target = path if how == "written again" else tmp_path / "b.parquet"
    write(target, {"x": np.arange(6.0) + 1})
    if target != path:
        os.replace(target, path)
    with pytest.raises(ReaderError, match="a.parquet: the file has changed since this data set was opened"):
        data.training_data  # noqa: B018


def test_no_pandas_is_needed(folder):
    code = f"""
import importlib.abc, sys

class NoPandas(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'")

sys.meta_path.insert(0, NoPandas())
from matex_tf.readers import DataSet
for columns in (["a", "v", "text", "y"], None):
    data = DataSet("PARQUET", {str(folder / "one.parquet")!r}, labels="y", columns=columns, rank=1, size=2)
    assert len(data.training_data)
"""
    launch.execute([sys.executable, "-c", code], launch.environment(), 60).check()


def test_columns_of_one_name_go_by_their_numbers(tmp_path):
    twice = pa.Table.from_arrays([pa.array([1, 2]), pa.array([3, 4]), pa.array([5, 6])], ["x", "y", "x"])
    path = write(tmp_path / "a.parquet", twice)
    assert alone(path, columns=[2, 1], labels=0).training_data.tolist() == [[5, 3], [6, 4]]
    with pytest.raises(ReaderError, match="expected one column 'x', found several"):
        alone(path, columns="x")
