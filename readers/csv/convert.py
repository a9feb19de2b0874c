"""Converts columns of text to numbers by the rules of a dialect."""

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
    """Convert a pyarrow column of texts to numbers of the type `kind`; None if a text is not a number.

    Each text is converted independently: a column may mix numbers that pyarrow parses and numbers that only the dialect
    describes. `dialect.thousands` may separate groups of three digits; commas may also group digits as in India:
    12,34,567.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    texts = pc.utf8_trim_whitespace(column)
    fits_dialect = pc.match_substring_regex(texts, _make_pattern(dialect))
    if pc.all(fits_dialect).as_py() is False:  # None: all values are missing
        # pyarrow parses the texts that the pattern does not match; this function converts the rest.
        others = pc.invert(fits_dialect).fill_null(False)
        parsed = _parse_texts(column.filter(others), kind, dialect)
        rest = convert_column(pc.if_else(others, pa.scalar(None, column.type), column), kind, dialect)
        return None if parsed is None or rest is None else pc.replace_with_mask(rest, others, parsed)
    if dialect.thousands is not None:
        texts = pc.replace_substring(texts, dialect.thousands, "")
    if dialect.decimal != ".":
        texts = pc.replace_substring(texts, dialect.decimal, ".")
    try:
        return pc.replace_substring_regex(texts, r"^\+", "").cast(kind)
    except pa.ArrowInvalid:  # out of range, or not an integer
        return None


def _parse_texts(texts: Any, kind: Any, dialect: Dialect) -> Any:
    """Texts as pyarrow parses a column of the type `kind`; None if it rejects one."""
    data = "".join('"' + text.replace('"', '""') + '"\n' for text in texts.to_pylist()).encode()
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(data),
            arrow_csv.ReadOptions(column_names=["x"], block_size=len(data) + 1),
            arrow_csv.ParseOptions(newlines_in_values=True),
            arrow_csv.ConvertOptions(
                column_types={"x": kind}, null_values=dialect.nulls, decimal_point=dialect.decimal
            ),
            memory_pool=pa.system_memory_pool(),
        )
    except pa.ArrowInvalid:
        return None
    return table["x"].combine_chunks()


def can_convert(texts: Sequence[str], kind: Any, dialect: Dialect) -> bool:
    """Returns whether all texts are valid values of this type."""
    column = pa.array(texts, pa.string())
    convert = _parse_texts if pa.types.is_boolean(kind) else convert_column
    return convert(column, kind, dialect) is not None


def recognise_column(column: Any, dialect: Dialect) -> Any:
    """Convert a pyarrow column of texts to int64, or else to float64; None: no values, other texts, or addresses."""
    if len(column) == column.null_count or pc.all(pc.match_substring_regex(column, rf"^\s*{ADDRESS}\s*$")).as_py():
        return None
    whole = convert_column(column, pa.int64(), dialect)
    return convert_column(column, pa.float64(), dialect) if whole is None else whole


@functools.lru_cache
def _make_pattern(dialect: Dialect) -> str:
    """The pattern of a number with the decimal and thousands marks of the dialect."""
    point = re.escape(dialect.decimal)
    whole = r"\d+"
    if dialect.thousands is not None:
        mark = re.escape(dialect.thousands)
        indian = r"|\d{1,2}(?:,\d{2})+,\d{3}" if dialect.thousands == "," else ""
        whole = rf"(?:\d+|\d{{1,3}}(?:{mark}\d{{3}})+{indian})"
    return rf"^[-+]?(?:(?:{whole}(?:{point}\d*)?|{point}\d+)(?:[eE][-+]?\d+)?|(?i:inf|infinity))$"


def drop_null_numbers(column: Any, dialect: Dialect) -> Any:
    """Replace the numbers that mark missing values by nulls in a pyarrow column of numbers."""
    kind = column.type
    if pa.types.is_integer(kind):
        numbers: list[float] = [int(number) for number in dialect.null_numbers if number == int(number)]
    elif pa.types.is_floating(kind):
        numbers = list(dialect.null_numbers)
    else:
        return column
    known = [found for number in numbers if (found := _make_scalar(number, kind)) is not None]
    if not known:
        return column
    absent = pc.is_in(column, value_set=pa.array(known, kind))
    return pc.if_else(absent, pa.scalar(None, kind), column) if pc.any(absent).as_py() else column


def _make_scalar(number: float, kind: Any) -> Any:
    """`number` as a value of the type `kind`; None if the type cannot represent it."""
    try:
        return pa.scalar(number, kind).as_py()
    except (pa.ArrowInvalid, OverflowError):  # out of range
        return None
