"""The dialect of a CSV file: delimiters, encoding, and the spelling of numbers and missing values."""

from __future__ import annotations

import codecs
import itertools
import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from matex_tf import arguments
from matex_tf.readers.csv.marks import Marks

NULLS = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"),
    *("NULL", "NaN", "n/a", "nan", "null"),
)
"""Texts that mark a missing value in every file."""


@dataclass(frozen=True)
class Dialect:
    """How a CSV file spells its values. `marks` has its quote and comment characters.

    A missing value is one of the texts `nulls`, or one of the numbers `null_numbers` in any spelling.
    """

    marks: Marks = field(default_factory=Marks)
    delimiter: str = ","
    encoding: str = "utf-8"
    decimal: str = "."
    thousands: str | None = None
    nulls: tuple[str, ...] = NULLS
    null_numbers: tuple[float, ...] = ()
    skiprows: int = 0

    @property
    def is_recoded_whole(self) -> bool:
        """Whether a file must be recoded to UTF-8 before it is split: a newline in UTF-16, say, is not the byte 10."""
        return self.encoding != "utf-8" and not _has_single_bytes(self.encoding)

    def clean_block(self, data: bytes) -> bytes:
        """Recode complete records to UTF-8 and remove comments; line breaks stay. Raises UnicodeDecodeError."""
        data = self.marks.remove_comments(data)
        if self.encoding == "utf-8" or self.is_recoded_whole:
            return data
        return data.decode(self.encoding).encode()

    def skip_lines(self, head: bytes, begin: int) -> int | None:
        """The offset after the lines of `skiprows`; None if `head` has fewer lines."""
        for _ in range(self.skiprows):
            begin = head.find(b"\n", begin) + 1
            if not begin:
                return None
        return begin


def make_dialect(
    delimiter: str | None,
    quote: str | None,
    comment: str | None,
    encoding: str,
    decimal: str,
    thousands: str | None,
    na_values: Any,
    skiprows: int,
) -> Dialect:
    """Make a dialect from the options of a CSV file. Raises ValueError or TypeError for invalid options."""
    for name, mark in (("delimiter", delimiter), ("quote", quote), ("comment", comment), ("decimal", decimal)):
        if (mark or name == "decimal") and not (isinstance(mark, str) and len(mark) == 1 and mark.isascii()):
            raise ValueError(f"DataSet: {name} has to be one ASCII character; given {arguments.describe_value(mark)}")
    if thousands is not None and not (isinstance(thousands, str) and len(thousands) == 1):
        raise ValueError(f"DataSet: thousands has to be one character; given {arguments.describe_value(thousands)}")
    marks = [("quote", quote), ("comment", comment), ("decimal", decimal), ("thousands", thousands)]
    if delimiter not in (decimal, thousands):  # a delimiter may also be a mark in quoted numbers
        marks.append(("delimiter", delimiter))
    for (name, mark), (other_name, other_mark) in itertools.combinations(marks, 2):
        if mark and mark == other_mark:
            raise ValueError(f"DataSet: {name} and {other_name} have to be different; given {mark!r} for both")
    for name, mark in (("decimal", decimal), ("thousands", thousands)):
        if mark and (mark.isalnum() or mark in "+-"):
            raise ValueError(f"DataSet: {name} must not be a letter, digit or sign; given {mark!r}")
    arguments.check_whole_number("DataSet", "skiprows, which counts lines,", skiprows, 0)
    null_texts = _list_nulls(na_values)
    return Dialect(
        Marks(ord(quote) if quote else None, ord(comment) if comment else None),
        delimiter or ",",
        _find_encoding(encoding),
        decimal,
        thousands,
        (*NULLS, *null_texts),
        tuple(number for number in map(_read_number, null_texts) if number is not None),
        skiprows,
    )


def _list_nulls(na_values: Any) -> list[str]:
    """The option na_values= as texts."""
    is_single = isinstance(na_values, (str, bytes, Mapping)) or not isinstance(na_values, Iterable)
    null_values = [] if na_values is None else [na_values] if is_single else list(na_values)
    for value in null_values:
        if isinstance(value, bool) or not isinstance(value, (str, numbers.Real)):
            description = arguments.describe_value(na_values)
            raise TypeError(f"DataSet: na_values has to be a text, a number, or several; given {description}")
    return [str(value) for value in null_values]


def _read_number(text: str) -> float | None:
    """The finite number that Python reads from a text; None if there is none."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _find_encoding(name: Any) -> str:
    """Python's standard name of an encoding. Raises ValueError if Python knows no such text encoding."""
    try:
        codec = codecs.lookup(name)
        "".encode(name)  # rejects codecs that do not encode text
        b"a".decode(name, "replace")  # rejects idna, which encodes host names only
    except (LookupError, TypeError, UnicodeError):
        raise ValueError(
            f'DataSet: encoding has to be a text encoding that Python knows, such as "utf-8", "latin-1", "cp1252" or '
            f'"utf-16"; given {arguments.describe_value(name)}'
        ) from None
    return "utf-8" if codec.name == "utf-8-sig" else codec.name  # `headers.py` skips the BOM in any case


def _has_single_bytes(encoding: str) -> bool:
    """Whether the encoding has one byte for each character, and contains ASCII."""
    ascii_bytes = bytes(range(128))
    if ascii_bytes.decode(encoding, "replace") != ascii_bytes.decode():
        return False
    # Four equal bytes are four equal characters only if each byte is a character.
    return all(
        len(text := bytes([byte] * 4).decode(encoding, "replace")) == 4 and len(set(text)) == 1
        for byte in range(128, 256)
    )
