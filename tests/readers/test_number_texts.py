"""No text that is a number to a person becomes a category; options read what is spelled otherwise, as pandas does."""

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
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from opened_csv import opened

from matex_tf.readers import DataSet, ReaderError
from matex_tf.readers.csv import records

relaxed = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def alone(path, **options):
    return DataSet("CSV", path, rank=0, size=1, **options)


def write(folder, values, encoding="utf-8"):
    path = Path(tempfile.mkdtemp(dir=folder)) / "a.csv"
    path.write_bytes(("x\ty\n" + "".join(f"{value}\t1\n" for value in values)).encode(encoding))
    return path


# For each number of a column a way to write it is drawn.
DIGITS = ["0123456789", "٠١٢٣٤٥٦٧٨٩", "０１２３４５６７８９", "०१२३४५६७८९"]  # noqa: RUF001
spellings = st.fixed_dictionaries(
    {
        "digits": st.sampled_from(DIGITS),
        "minus": st.sampled_from(["-", "\N{MINUS SIGN}", "\N{EN DASH}", "\N{FULLWIDTH HYPHEN-MINUS}", "- "]),
        "plus": st.sampled_from(["", "+"]),
        "group": st.sampled_from(["", ",", ".", " ", "\xa0", "\u2009", "\u202f", "'", "\u2019", "_"]),
        "point": st.sampled_from([".", ",", "\N{MIDDLE DOT}", "\N{ARABIC DECIMAL SEPARATOR}"]),
        "exponent": st.sampled_from(["", "e", "E", "d", "D", "Q", "x10^", " \N{MULTIPLICATION SIGN} 10"]),
        "around": st.sampled_from(
            [
                "{}",
                "{}%",
                "{} %",
                "{}\N{PER MILLE SIGN}",
                "${}",
                "{} €",
                "US$ {}",
                "£{}",
                "({})",
                "{}-",
                "{} kg",
                "{}ms",
            ]
            + ["{} m/s", "{}°", "{} °C", " {} ", "\u200e{}", "'{}", "EUR {}", "USD{}", "Rs. {}", "{} GB", "{} min"]
            + ["~{}", "<{}", "={}", "{}*", "{} \N{DAGGER}", "{}±1", "{}K"]
        ),
    }
)


def spell(number, power, style):
    whole, _, part = f"{abs(number):.3f}".partition(".")
    if style["group"] and style["group"] != style["point"]:
        whole = f"{int(whole):,}".replace(",", style["group"])
    text = whole + style["point"] + part
    text += f"{style['exponent']}{power:+03}" if style["exponent"] else ""
    text = (style["minus"] if number < 0 else style["plus"]) + text
    text = text.translate(str.maketrans(DIGITS[0], style["digits"]))
    return style["around"].format(text)


@relaxed
@given(
    st.lists(st.tuples(st.floats(-1e7, 1e7), st.integers(-20, 20), spellings), min_size=1, max_size=6),
    st.lists(st.sampled_from(["?", "low", "-"]), max_size=1),
    st.sampled_from([None, "float64"]),
)
def test_a_number_in_whatever_spelling_is_read_or_refused_and_never_a_category(tmp_path, numbers, others, dtype):
    texts = [spell(number, power, style) for number, power, style in numbers]
    assume(len(others) < len(texts))
    path = write(tmp_path, texts + others)
    try:
        data = alone(path, columns="x", dtype=dtype)
    except ReaderError as error:
        place, _, rest = str(error).partition(", column 'x': ")
        line = int(place.removeprefix(f"{path}, line "))
        assert repr((texts + others)[line - 2]) in rest
        assert "str}" in rest
        return
    assert data.categories == {}
    expected = [number * (10.0**power if style["exponent"] else 1) for number, power, style in numbers]
    np.testing.assert_allclose(data.training_data[:, 0], expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(
    "text",
    ["2020-01-02", "01.02.2020", "3/4/2020", "12:30", "1.2.3", "10.0.0.1", "10-20", "A12", "chr7", "x1y2"]
    + ["3rd", "10th", "65+", ">50K", "1/2", "192.168.100.101", "100.100.100.100", "1.10.100", "2D", "2d", "4WD"]
    + ["4cyl", "1Story", "1Q", "1H", "1er", "2e", "1ère", "2º", "5G", "2x", "4x4", "5pm", "11 AM", "2月", "10.100.1"]
    + ["2013 08 14", "14 08 2013", "14 Aug", "1a", "2in1", "5 of 10", "chr 7", "AB 5"],
)
def test_what_is_no_number_to_a_person_stays_a_category(tmp_path, text):
    assert alone(write(tmp_path, [text, text]), columns="x").categories == {"x": [text]}


def test_names_that_end_with_a_letter_of_a_unit_stay_categories(tmp_path):
    for names in (["1A", "1B", "1C", "2A", "2B", "2C"], ["2D", "3D"], ["4G", "5G", "LTE"], ["3 apples", "2 pears"]):
        assert alone(write(tmp_path, names), columns="x").categories == {"x": sorted(names)}


@pytest.mark.parametrize(
    "texts",
    [["512 MB", "1 GB"], ["10 s", "1 min", "2 h"], ["5 cm", "1 m"], ["5 V", "100 mV", "2 mV"], ["512 B", "4K", "1.5M"]]
    + [["EUR 5", "USD5", "Rs. 5", "5 CHF", "$5"], ["~5", "<5", "≥5", "=5", "5*"], ["5±1", "1+2j", "(1-2j)", "1.25(3)"]]
    + [["52°30'", "52° 30′ 15″ N", "52.5°"], ["3 apples", "2 apples", "1 apple"], ["5 W/m²", "3 kg·m/s^2"]],  # noqa: RUF001
)
def test_columns_of_numbers_in_mixed_units_and_signs(tmp_path, texts):
    with pytest.raises(ReaderError, match=r"column 'x': expected a number"):
        alone(write(tmp_path, texts), columns="x")


@pytest.mark.parametrize("text", ["0x1F", "-0b101", "1.5-103", "½", "∞", "1.5D+00", "5 EUR", "12,34,567.5", "1 000"])
def test_rarer_numbers(tmp_path, text):
    with pytest.raises(ReaderError, match=r"line 2, column 'x': expected a number"):
        alone(write(tmp_path, [text, text]), columns="x")


@pytest.mark.parametrize("size", (1, 3))
def test_numbers_that_come_after_the_first_mebibyte_of_text(tmp_path, size):
    path = write(tmp_path, ["low"] * 180_000 + [f"{number % 50}%" for number in range(200_000)])
    for keep in (True, False):
        with pytest.raises(ReaderError, match=r"a.csv, line 180002, column 'x': .*'0%'"):
            opened(path, size, keep=keep, columns="x")
    assert alone(path, columns="x", dtype={"x": str}).categories["x"][0] == "0%"


@pytest.mark.parametrize("size", (1, 3))
def test_a_column_is_one_of_numbers_where_most_rows_are(tmp_path, size):
    few = [["low"] * 300_000 + [404, 500, 503], ["ok"] * 30 + ["fail"] * 20 + [404, 500, 503]]
    for values in few:
        path = write(tmp_path, values)
        for keep in (True, False):
            assert opened(path, size, keep=keep, columns="x")[-1].categories == {"x": sorted({*map(str, values)})}
    # The first MiB holds words alone, and all rows mostly one number.
    path = write(tmp_path, ["low", "high"] * 90_000 + [500] * 200_000)
    for keep in (True, False):
        with pytest.raises(ReaderError, match=r"line 180002, column 'x': .*'500', and most rows") as caught:
            opened(path, size, keep=keep, columns="x")
        assert "no option" not in str(caught.value) and "na_values" not in str(caught.value)
    with pytest.raises(ReaderError, match=r"line 2, column 'x': .*found 'low'"):
        alone(path, columns="x", dtype={"x": "float64"})


def test_ranks_name_the_line_of_a_number_that_the_share_of_another_holds(tmp_path):
    # Long records first: the parts of the bytes and the shares of the rows differ.
    words = ["w" * 3000] * 400 + ["low"] * 600
    path = write(tmp_path, words + [f"{number}%" for number in range(1500)])
    for size in range(1, 8):
        for keep in (True, False):
            with pytest.raises(ReaderError, match=r"a.csv, line 1002, column 'x': .*'0%'"):
                opened(path, size, keep=keep, columns="x")


@pytest.mark.parametrize(
    "text, advice",
    [
        ("1.234,56", "decimal=',', thousands='.' reads it as 1234.56"),
        ("1,5", "decimal=',' reads it as 1.5"),
        ("1\xa0000", "thousands='\\xa0' reads it as 1000"),
        ("1,234", "thousands=',' reads it as 1234"),
    ],
)
def test_the_option_that_an_error_names_reads_the_value(tmp_path, text, advice):
    path = write(tmp_path, [text])
    with pytest.raises(ReaderError) as caught:
        alone(path, columns="x")
    assert advice in str(caught.value)
    options, _, value = advice.partition(" reads it as ")
    assert alone(path, columns="x", **eval(f"dict({options})")).training_data.tolist() == [[float(value)]]


def test_no_option_is_advised_that_reads_a_mark_of_another_meaning(tmp_path):
    for text in ("5±100", "5+100j", "EUR 100", "1.5-103", "<100"):
        with pytest.raises(ReaderError, match="no option reads") as caught:
            alone(write(tmp_path, [text]), columns="x")
        assert "thousands" not in str(caught.value)
    path = write(tmp_path, ["1.10.100"])
    assert alone(path, columns="x", decimal=",", thousands=".").categories == {"x": ["1.10.100"]}


def test_rows_of_numbers_that_another_delimiter_parts_are_no_categories(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("59 2 32.1\n48 1 21.6\n")
    with pytest.raises(ReaderError, match=r"line 1, column '0': .*'59 2 32.1'; delimiter=' ' reads it as 3 numbers"):
        alone(path, header=False)
    assert alone(path, header=False, delimiter=" ").training_data.tolist() == [[59, 2, 32.1], [48, 1, 21.6]]
    for text in ("1;2", "1, 2, 3", "1  2", "0.5 | 0.25"):
        with pytest.raises(ReaderError, match="line 2, column 'x': expected a number"):
            alone(write(tmp_path, [text, text]), columns="x")


def test_a_mark_for_missing_values_is_advised_to_be_one(tmp_path):
    path = write(tmp_path, [1, 2, "?"])
    with pytest.raises(ReaderError, match=r"line 4, column 'x': .*na_values=\['\?'\]"):
        alone(path, columns="x")
    found = alone(path, columns="x", na_values=["?"], missing="nan").training_data[:, 0]
    np.testing.assert_array_equal(found, [1, 2, np.nan])


@pytest.mark.parametrize(
    "given",
    [-999, "-999", [-999], (-999.0,), {-999}, frozenset({"-999"}), np.array([-999]), [np.int64(-999)]]
    + [np.float32(-999), range(-999, -998), pd.Index([-999.0]), {"-999": 1}.keys()],
)
def test_missing_values_are_given_as_one_or_as_any_collection(tmp_path, given):
    path = write(tmp_path, [1, -999, "-999.0", 2])
    found = alone(path, columns="x", na_values=given, missing="nan").training_data[:, 0]
    np.testing.assert_array_equal(found, [1, np.nan, np.nan, 2])


# Options, as pandas reads them.

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
                kept = [array for reader in readers for array in reader.held.rows["data"]]
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
        failing("encoding has to be one of texts that Python knows", ValueError, encoding=encoding)
    failing("na_values has to be a text, a number, or several", TypeError, na_values=[True])
    failing("decimal and thousands have to be different", ValueError, decimal=",", thousands=",")
    failing("quote and comment have to be different", ValueError, comment='"')
    failing("thousands can be no letter", ValueError, thousands="e")
    failing("na_values has to be a text, a number, or several", TypeError, na_values={"x": 1})
    failing("expected more lines than the 7 of skiprows", skiprows=7)
