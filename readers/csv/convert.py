"""Converts columns of text to numbers by the rules of a dialect, such as 1.234,5 to 1234.5.

`table.py` lets pyarrow's CSV reader parse the numbers of a file where it can. That reader knows a decimal mark, but no
thousands mark, and no plus sign of integers. Where it fails, `table.py` reads texts, and `convert_column` removes these
characters and lets the same reader parse the result.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from matex_tf.lazy import arrow_csv, pa, pc
from matex_tf.readers.csv.dialect import Dialect

_BYTE = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
ADDRESS = rf"(?:{_BYTE}\.){{3}}{_BYTE}"
"""An IPv4 address; 192.168.100.101 is an address even if "." separates thousands."""


def convert_column(column: Any, kind: Any, dialect: Dialect) -> Any:
    """Convert a pyarrow column of texts to numbers of the type `kind`; None if a text is not a number of this type.

    Missing values (null) stay missing. A text that does not match the pattern of the dialect, such as "nan", is parsed
    unchanged. So a value that pyarrow accepts stays valid if another value of the column needs rewriting.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    texts = pc.utf8_trim_whitespace(column)
    rewritten = pc.replace_substring_regex(texts, r"^\+", "")  # pyarrow reads no plus sign of integers
    if dialect.thousands is not None:
        rewritten = pc.replace_substring(rewritten, dialect.thousands, "")
    fits_dialect = pc.match_substring_regex(texts, _make_pattern(dialect))
    return _parse_texts(pc.if_else(fits_dialect, rewritten, column), kind, dialect)


def _parse_texts(texts: Any, kind: Any, dialect: Dialect) -> Any:
    """Texts as pyarrow's CSV reader parses a column of the type `kind`; None if it rejects one.

    Only this reader, and no cast, has an option for the decimal mark. So the texts become a CSV file in memory, with
    one column. They are in quotes, since a text may contain delimiters or newlines. The file is one block for the
    reader, since a record must fit into a block. Missing values (null) are empty texts in it. `Dialect.nulls` do not
    apply: they are texts as in the file, and `convert_column` has removed spaces and marks.
    """
    if not len(texts):
        return texts.cast(kind)  # the reader rejects an empty file
    quoted = pc.binary_join_element_wise('"', pc.replace_substring(texts.fill_null(""), '"', '""'), '"\n', "")
    data = pc.binary_join(pa.ListArray.from_arrays([0, len(quoted)], quoted), "")[0].as_buffer()
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(data),
            arrow_csv.ReadOptions(column_names=["x"], block_size=len(data) + 1),
            arrow_csv.ParseOptions(newlines_in_values=True),
            arrow_csv.ConvertOptions(column_types={"x": kind}, null_values=[""], decimal_point=dialect.decimal),
            memory_pool=pa.system_memory_pool(),
        )
    except pa.ArrowInvalid:
        return None
    return table["x"].combine_chunks()


def can_convert(texts: Sequence[str], kind: Any, dialect: Dialect) -> bool:
    """Returns whether all texts are valid values of this type, a type of numbers or bool."""
    column = pa.array(texts, pa.string())
    convert_texts = _parse_texts if pa.types.is_boolean(kind) else convert_column  # the pattern matches numbers only
    return convert_texts(column, kind, dialect) is not None


def recognise_column(column: Any, dialect: Dialect) -> Any:
    """Convert a pyarrow column of texts to int64, or to float64 if a number is not whole or is too large for int64.

    None if the column stays as it is: it has no values, a text that is no number, or only IPv4 addresses.
    """
    if len(column) == column.null_count or pc.all(pc.match_substring_regex(column, rf"^\s*{ADDRESS}\s*$")).as_py():
        return None
    integers = convert_column(column, pa.int64(), dialect)
    return convert_column(column, pa.float64(), dialect) if integers is None else integers


@functools.lru_cache
def _make_pattern(dialect: Dialect) -> str:
    """The pattern of a number with the decimal and thousands marks of the dialect: a sign, digits, an exponent."""
    decimal_mark = re.escape(dialect.decimal)
    # The examples have the marks "." and ",". Digits before the point: 1234; with a thousands mark also 1,234,567, and
    # as in India 12,34,567.
    integer_part = r"\d+"
    if dialect.thousands is not None:
        thousands_mark = re.escape(dialect.thousands)
        indian_groups = r"|\d{1,2}(?:,\d{2})+,\d{3}" if dialect.thousands == "," else ""
        integer_part = rf"(?:\d+|\d{{1,3}}(?:{thousands_mark}\d{{3}})+{indian_groups})"
    # 12, 12. or 12.5; or .5; each also with an exponent, as 1.5e-3; or inf, Infinity.
    return rf"^[-+]?(?:(?:{integer_part}(?:{decimal_mark}\d*)?|{decimal_mark}\d+)(?:[eE][-+]?\d+)?|(?i:inf|infinity))$"


def drop_null_numbers(column: Any, dialect: Dialect) -> Any:
    """Replace the numbers that mark missing values by nulls in a pyarrow column of numbers.

    With na_values=-999, -999.0 is missing, too. A column of another type, such as texts, stays as it is.
    """
    kind = column.type
    if pa.types.is_integer(kind):
        numbers: list[float] = [int(number) for number in dialect.null_numbers if number == int(number)]
    elif pa.types.is_floating(kind):
        numbers = list(dialect.null_numbers)
    else:
        return column
    null_values = [scalar for number in numbers if (scalar := _make_scalar(number, kind)) is not None]
    if not null_values:
        return column
    is_null = pc.is_in(column, value_set=pa.array(null_values, kind))
    return pc.if_else(is_null, pa.scalar(None, kind), column) if pc.any(is_null).as_py() else column


def _make_scalar(number: float, kind: Any) -> Any:
    """`number` as a value of the type `kind`; None if the type cannot represent it."""
    try:
        return pa.scalar(number, kind).as_py()
    except (pa.ArrowInvalid, OverflowError):  # out of range
        return None
