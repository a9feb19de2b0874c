"""Columns of text made into numbers, as a dialect spells them."""

from __future__ import annotations

import functools
import re
from typing import Any

from matex_tf.readers.csv.dialect import Dialect


def convert_column(column: Any, kind: Any, dialect: Dialect) -> Any:
    """A pyarrow column of texts as numbers of the type `kind`; None where one of them is none.

    Between groups of three digits `dialect.thousands` may stand, or commas as in India: 12,34,567.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pc.utf8_trim_whitespace(column)
    if pc.all(pc.match_substring_regex(texts, _make_pattern(dialect))).as_py() is False:
        return None
    if dialect.thousands is not None:
        texts = pc.replace_substring(texts, dialect.thousands, "")
    if dialect.decimal != ".":
        texts = pc.replace_substring(texts, dialect.decimal, ".")
    try:
        return pc.replace_substring_regex(texts, r"^\+", "").cast(kind)
    except pa.ArrowInvalid:  # more than the type holds, or no whole number
        return None


def recognise_column(column: Any, dialect: Dialect) -> Any:
    """A pyarrow column of texts as whole numbers, or as others; None where one of them is no number."""
    import pyarrow as pa

    if len(column) == column.null_count:
        return None
    whole = convert_column(column, pa.int64(), dialect)
    return convert_column(column, pa.float64(), dialect) if whole is None else whole


@functools.lru_cache
def _make_pattern(dialect: Dialect) -> str:
    point = re.escape(dialect.decimal)
    whole = r"\d+"
    if dialect.thousands is not None:
        mark = re.escape(dialect.thousands)
        indian = r"|\d{1,2}(?:,\d{2})+,\d{3}" if dialect.thousands == "," else ""
        whole = rf"(?:\d+|\d{{1,3}}(?:{mark}\d{{3}})+{indian})"
    return rf"^[-+]?(?:(?:{whole}(?:{point}\d*)?|{point}\d+)(?:[eE][-+]?\d+)?|(?i:inf|infinity))$"


def drop_null_numbers(column: Any, dialect: Dialect) -> Any:
    """A pyarrow column of numbers, without those that stand for a missing value."""
    import pyarrow as pa
    import pyarrow.compute as pc

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
    import pyarrow as pa

    try:
        return pa.scalar(number, kind).as_py()
    except (pa.ArrowInvalid, OverflowError):  # more than the type holds
        return None
