"""No text that is a number to a person becomes a category, and what is none does."""

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from opened_csv import alone, opened, write_column

from matex_tf.readers import ReaderError

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


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
    path = write_column(tmp_path, texts + others)
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
    + ["2013 08 14", "14 08 2013", "14 Aug", "1a", "2in1", "5 of 10", "chr 7", "AB 5"]
    + ["2020Q1", "2020 Q4", "1990s"],
)
def test_what_is_no_number_to_a_person_stays_a_category(tmp_path, text):
    assert alone(write_column(tmp_path, [text, text]), columns="x").categories == {"x": [text]}


def test_names_that_end_with_a_letter_of_a_unit_stay_categories(tmp_path):
    for names in (["1A", "1B", "1C", "2A", "2B", "2C"], ["2D", "3D"], ["4G", "5G", "LTE"], ["3 apples", "2 pears"]):
        assert alone(write_column(tmp_path, names), columns="x").categories == {"x": sorted(names)}


@pytest.mark.parametrize(
    "texts",
    [["512 MB", "1 GB"], ["10 s", "1 min", "2 h"], ["5 cm", "1 m"], ["5 V", "100 mV", "2 mV"], ["512 B", "4K", "1.5M"]]
    + [["EUR 5", "USD5", "Rs. 5", "5 CHF", "$5"], ["~5", "<5", "≥5", "=5", "5*"], ["5±1", "1+2j", "(1-2j)", "1.25(3)"]]
    + [["52°30'", "52° 30′ 15″ N", "52.5°"], ["3 apples", "2 apples", "1 apple"], ["5 W/m²", "3 kg·m/s^2"]],  # noqa: RUF001
)
def test_columns_of_numbers_in_mixed_units_and_signs(tmp_path, texts):
    with pytest.raises(ReaderError, match=r"column 'x': expected a number"):
        alone(write_column(tmp_path, texts), columns="x")


@pytest.mark.parametrize("text", ["0x1F", "-0b101", "1.5-103", "½", "∞", "1.5D+00", "5 EUR", "12,34,567.5", "1 000"])
def test_rarer_numbers(tmp_path, text):
    with pytest.raises(ReaderError, match=r"line 2, column 'x': expected a number"):
        alone(write_column(tmp_path, [text, text]), columns="x")


@pytest.mark.parametrize("size", (1, 3))
def test_numbers_that_come_after_the_first_mebibyte_of_text(tmp_path, size):
    path = write_column(tmp_path, ["low"] * 180_000 + [f"{number % 50}%" for number in range(200_000)])
    for keep in (True, False):
        with pytest.raises(ReaderError, match=r"a.csv, line 180002, column 'x': .*'0%'"):
            opened(path, size, keep=keep, columns="x")
    assert alone(path, columns="x", dtype={"x": str}).categories["x"][0] == "0%"


@pytest.mark.parametrize("size", (1, 3))
def test_a_column_is_one_of_numbers_where_most_rows_are(tmp_path, size):
    few = [["low"] * 300_000 + [404, 500, 503], ["ok"] * 30 + ["fail"] * 20 + [404, 500, 503]]
    for values in few:
        path = write_column(tmp_path, values)
        for keep in (True, False):
            assert opened(path, size, keep=keep, columns="x")[-1].categories == {"x": sorted({*map(str, values)})}
    # The first MiB holds words alone, and all rows mostly one number.
    path = write_column(tmp_path, ["low", "high"] * 90_000 + [500] * 200_000)
    for keep in (True, False):
        with pytest.raises(ReaderError, match=r"line 180002, column 'x': .*'500', and most rows") as caught:
            opened(path, size, keep=keep, columns="x")
        assert "no option" not in str(caught.value) and "na_values" not in str(caught.value)
    with pytest.raises(ReaderError, match=r"line 2, column 'x': .*found 'low'"):
        alone(path, columns="x", dtype={"x": "float64"})


def test_ranks_name_the_line_of_a_number_that_the_share_of_another_holds(tmp_path):
    # Long records first: the parts of the bytes and the shares of the rows differ.
    words = ["w" * 3000] * 400 + ["low"] * 600
    path = write_column(tmp_path, words + [f"{number}%" for number in range(1500)])
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
    path = write_column(tmp_path, [text])
    with pytest.raises(ReaderError) as caught:
        alone(path, columns="x")
    assert advice in str(caught.value)
    options, _, value = advice.partition(" reads it as ")
    assert alone(path, columns="x", **eval(f"dict({options})")).training_data.tolist() == [[float(value)]]


def test_no_option_is_advised_that_reads_a_mark_of_another_meaning(tmp_path):
    for text in ("5±100", "5+100j", "EUR 100", "1.5-103", "<100"):
        with pytest.raises(ReaderError, match="no option reads") as caught:
            alone(write_column(tmp_path, [text]), columns="x")
        assert "thousands" not in str(caught.value)
    for text in ("1.10.100", "192.168.100.101"):
        path = write_column(tmp_path, [text])
        assert alone(path, columns="x", decimal=",", thousands=".").categories == {"x": [text]}


def test_rows_of_numbers_that_another_delimiter_parts_are_no_categories(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("59 2 32.1\n48 1 21.6\n")
    with pytest.raises(ReaderError, match=r"line 1, column '0': .*'59 2 32.1'; delimiter=' ' reads it as 3 numbers"):
        alone(path, header=False)
    assert alone(path, header=False, delimiter=" ").training_data.tolist() == [[59, 2, 32.1], [48, 1, 21.6]]
    for text in ("1;2", "1, 2, 3", "1  2", "0.5 | 0.25"):
        with pytest.raises(ReaderError, match="line 2, column 'x': expected a number"):
            alone(write_column(tmp_path, [text, text]), columns="x")


def test_a_mark_for_missing_values_is_advised_to_be_one(tmp_path):
    path = write_column(tmp_path, [1, 2, "?"])
    with pytest.raises(ReaderError, match=r"line 4, column 'x': .*na_values=\['\?'\]"):
        alone(path, columns="x")
    found = alone(path, columns="x", na_values=["?"], missing="nan").training_data[:, 0]
    np.testing.assert_array_equal(found, [1, 2, np.nan])
