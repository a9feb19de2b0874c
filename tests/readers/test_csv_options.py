"""Options of CSV files mean what they mean in pandas, and wrong ones are named."""

import bz2
import gzip
import io
import lzma
import tempfile
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opened_csv import alone, opened, write_column

from matex_tf.readers import ReaderError
from matex_tf.readers.csv import records

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize(
    "given",
    [-999, "-999", [-999], (-999.0,), {-999}, frozenset({"-999"}), np.array([-999]), [np.int64(-999)]]
    + [np.float32(-999), range(-999, -998), pd.Index([-999.0]), {"-999": 1}.keys()],
)
def test_missing_values_are_given_as_one_or_as_any_collection(tmp_path, given):
    path = write_column(tmp_path, [1, -999, "-999.0", 2])
    found = alone(path, columns="x", na_values=given, missing="nan").training_data[:, 0]
    np.testing.assert_array_equal(found, [1, np.nan, np.nan, 2])


@pytest.mark.parametrize("other", ["1000", "1.000", "+1000"])
@pytest.mark.parametrize("null, text, value", [("inf", " inf", np.inf), ("1,5", " 1,5", 1.5)])
def test_a_text_is_missing_or_not_whatever_the_spelling_of_other_values(tmp_path, null, text, value, other):
    path = write_column(tmp_path, [other, text, null])
    options = {"decimal": ",", "thousands": ".", "na_values": null, "missing": "nan"}
    found = alone(path, columns="x", **options).training_data[:, 0]
    np.testing.assert_array_equal(found, [1000, value, np.nan])


numbers = st.one_of(st.integers(-2_000_000, 2_000_000), st.floats(-1e7, 1e7).map(lambda value: round(value, 3)))
marks = st.sampled_from([(".", None), (",", None), (",", "."), (".", ","), (",", " "), (".", "'")])


@st.composite
def tables(draw):
    decimal, thousands = draw(marks)
    comment, nulls = draw(st.sampled_from([None, "#", "%"])), draw(st.sampled_from([[], ["?"], [-999], ["?", "x", 7]]))
    quoted = st.text(alphabet='ab#"\n é', max_size=5).map(lambda text: '"t' + text.replace('"', '""') + '"')

    def write_number(value):
        if value is None:
            return draw(st.sampled_from(["", "NA", *map(str, nulls)]))
        text = f"{value:,}" if thousands and draw(st.booleans()) else str(value)
        return text.replace(",", "T").replace(".", decimal).replace("T", thousands or "")

    rows = draw(st.lists(st.tuples(st.one_of(numbers, numbers, st.none()), numbers, quoted), min_size=1, max_size=30))
    skipped = draw(st.integers(0, 3))
    lines = [draw(st.sampled_from(["", "about; this", "Station 5"])) for _ in range(skipped)] + ["a;c;b"]
    for first, second, text in rows:
        if comment and draw(st.booleans()):
            lines.append(comment + draw(st.text(alphabet='ab;" #é', max_size=8)))
        lines.append(f"{write_number(first)};{text};{write_number(second)}")
        if comment and draw(st.booleans()):
            # Not after a quote, where pandas takes the mark for a letter.
            lines[-1] += comment + draw(st.text(alphabet='ab;"', max_size=5))
    options = {"decimal": decimal, "thousands": thousands, "na_values": nulls or None, "comment": comment}
    encoding = draw(st.sampled_from(["utf-8", "latin-1", "cp1252", "utf-16", "utf-8-sig"]))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    return end.join(lines) + draw(st.sampled_from(["", end])), {**options, "skiprows": skipped, "encoding": encoding}


@relaxed
@given(tables(), st.integers(1, 5), st.integers(3, 40), st.sampled_from(["", "gz", "bz2", "xz", "zip"]))
def test_options_read_what_pandas_reads_under_any_number_of_ranks(tmp_path, table, size, piece, packing):
    text, options = table
    data = text.encode(options["encoding"])
    expected = pd.read_csv(io.BytesIO(data), sep=";", keep_default_na=True, **options)
    path = Path(tempfile.mkdtemp(dir=tmp_path)) / "a.csv"
    path.write_bytes(pack(data, packing))
    with mock.patch.multiple(records, STRIDE=4, PIECE=piece):
        for keep in (True, False):
            readers = opened(
                path, size, keep=keep, labels="c", dtype={"c": str}, delimiter=";", missing="nan", **options
            )
            assert {reader.count("training") for reader in readers} == {len(expected)}
            found = readers[-1].read("training", "data", 0, len(expected))
            np.testing.assert_array_equal(found, expected[["a", "b"]].to_numpy(np.float64))
            codes = readers[0].read("training", "labels", 0, len(expected))
            texts = [None if np.isnan(code) else readers[0].categories["c"][int(code)] for code in codes]
            assert texts == [None if pd.isna(value) else value for value in expected["c"]]
            if keep:
                kept = [array for reader in readers for array in reader.kept.rows["data"]]
                np.testing.assert_array_equal(np.concatenate(kept), found)


cells = st.sampled_from(
    ["1", "2.5", "+3", "NAN", "nan", "-inf", "INFINITY", "0x1F", " 7 ", "1e3", "", "NA", "true", "no"]
)


@relaxed
@given(
    st.lists(cells, min_size=1, max_size=4),
    st.sampled_from([None, "float64", "int64"]),
    st.sampled_from(["1,000", "12,34,567"]),
)
def test_a_cell_means_the_same_whatever_another_column_holds(tmp_path, column, dtype, other):
    def read(beside):
        path = Path(tempfile.mkdtemp(dir=tmp_path)) / "a.csv"
        path.write_text("x;y\n" + "".join(f"{cell};{beside}\n" for cell in column))
        options = {"thousands": ",", "delimiter": ";", "missing": "nan"}
        try:
            data = alone(path, **options, dtype=None if dtype is None else {"x": dtype, "y": "float64"})
            return data.training_data[:, 0].tolist(), data.categories
        except ReaderError as error:
            assert ", column 'x': expected a number" in str(error)
            assert any(f"found {cell!r}" in str(error) for cell in column)
            return str(error).partition(", line ")[2]

    np.testing.assert_equal(read(other), read("5"))


def pack(data, packing):
    if packing == "zip":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.csv", data)
        return buffer.getvalue()
    return {"": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[packing](data)


def test_damaged_archives_and_wrong_options_are_named(tmp_path):
    def failing(match, error=ReaderError, **options):
        with pytest.raises(error, match=match):
            alone(tmp_path / "a.csv", **options).training_data  # noqa: B018

    good = b"x,y\n" + b"".join(b"%d,%d\n" % (number, number * number) for number in range(5000))
    for packing in ("gz", "bz2", "xz", "zip"):
        (tmp_path / "a.csv").write_bytes(pack(good, packing)[:2000])
        failing("a.csv: truncated or damaged: expected (gzip|bz2|xz|zip) data, found")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.csv", good)
        archive.writestr("b.csv", good)
    (tmp_path / "a.csv").write_bytes(buffer.getvalue())
    failing("expected one file in the archive, found 2: a.csv, b.csv")
    (tmp_path / "a.csv").write_bytes("x,y\né,1\n".encode("latin-1"))
    failing('a.csv, line 2: expected text in UTF-8, found the byte e9. encoding="latin-1"')
    (tmp_path / "a.csv").write_bytes(b"x,y\n1,\x81\n")
    failing("a.csv, line 2: expected text in CP1252, found the byte 81", encoding="cp1252")
    for encoding in ("latin1x", "idna", "undefined", "base64", "", 8):
        failing("encoding has to be a text encoding that Python knows", ValueError, encoding=encoding)
    failing("na_values has to be a text, a number, or several", TypeError, na_values=[True])
    failing("decimal and thousands have to be different", ValueError, decimal=",", thousands=",")
    failing("quote and comment have to be different", ValueError, comment='"')
    failing("thousands must not be a letter", ValueError, thousands="e")
    failing("na_values has to be a text, a number, or several", TypeError, na_values={"x": 1})
    failing("expected more lines than the 7 of skiprows", skiprows=7)
