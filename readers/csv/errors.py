"""Describes errors in CSV files: line, column, expected and found values.

A clean block has records in UTF-8 without comments. If pyarrow cannot parse it, `explain_error` finds the wrong value.
"""

from __future__ import annotations

import bisect
import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from matex_tf.lazy import pa
from matex_tf.readers.base.formats import ReaderError
from matex_tf.readers.csv import convert, number_like
from matex_tf.readers.csv.dialect import Dialect


def clean_block(data: bytes, dialect: Dialect, find_line: Callable[[], str]) -> bytes:
    """Return `dialect.clean_block(data)`. Raises ReaderError for bytes that are invalid in the encoding.

    `find_line`: returns file and line of the first byte as a place, "FILE, line NUMBER".
    """
    try:
        return dialect.clean_block(data)
    except UnicodeDecodeError as error:
        path, line = split_place(find_line())
        raise _make_encoding_error(path, error, dialect.encoding, line) from None


def split_place(place: str) -> tuple[Path, int]:
    """Split "FILE, line NUMBER" into file and line."""
    file, _, line = place.rpartition(", line ")
    return Path(file), int(line)


def _make_encoding_error(path: Path, error: UnicodeDecodeError, encoding: str, line: int) -> ReaderError:
    error_line = line + error.object[: error.start].count(b"\n")
    other_encoding = "latin-1" if encoding == "utf-8" else "utf-8"
    return ReaderError(
        f"{path}, line {error_line}: expected text in {encoding.upper()}, found the byte "
        f"{error.object[error.start]:02x}. "
        f'encoding="{other_encoding}", or another one, names the encoding of the file'
    )


def make_count_error(place: str, expected: int, found: int) -> ReaderError:
    """The error if pyarrow finds `found` records, not `expected` ones, in the block that begins at `place`."""
    path, line = split_place(place)
    return ReaderError(
        f"{path}: expected {expected} records from line {line} on, found {found}: a quote within a value, or a "
        "carriage return alone. If quotes are ordinary characters, pass quote=None"
    )


def read_rows(path: Path, data: bytes, dialect: Dialect, line: int = 1) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, values) of each record of a clean block from `line` on, by Python's slow csv module."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _make_encoding_error(path, error, "utf-8", line) from None
    quote = dialect.marks.quote
    quoting_options: dict[str, Any] = (
        {"quoting": csv.QUOTE_NONE} if quote is None else {"quotechar": chr(quote), "doublequote": True}
    )
    csv.field_size_limit(max(csv.field_size_limit(), len(text) + 1))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=dialect.delimiter, **quoting_options)
    lines_before = 0  # the lines that were read before the next record
    try:
        for values in reader:
            yield line + lines_before, values
            lines_before = reader.line_num
    except csv.Error as error:
        raise ReaderError(f"{path}, line {line + lines_before}: expected a record, found: {error}") from None


def explain_error(
    data: bytes,
    dialect: Dialect,
    names: Sequence[str],
    types: dict[int, Any],
    place: str,
    error: Exception,
) -> ReaderError:
    """The error for a clean block that cannot be parsed.

    `names`: of all columns. `types`: the expected types, by the number of the column. `place`: of the first record.
    """
    path, line = split_place(place)
    # Of each record with the right number of values, up to the first error found so far: its first line.
    lines: list[int] = []
    columns: dict[int, list[str]] = {number: [] for number in types}
    # The general error; a more specific one replaces it.
    explained_error = ReaderError(
        f"{path}, from line {line} on: expected a table of {len(names)} columns, found: {error}"
    )
    try:
        for record_line, values in read_rows(path, data, dialect, line):
            if not values:
                continue
            if len(values) != len(names):
                # If not even the first record has the right length, lines before the header are the likely reason; also
                # if the header has a single column, because it may itself be such a line of text.
                is_first_record = not lines or len(names) == 1
                hint = "; skiprows= skips lines before the header, comment= skips comments" if is_first_record else ""
                explained_error = ReaderError(
                    f"{path}, line {record_line}: expected {len(names)} values, found {len(values)}{hint}"
                )
                break
            lines.append(record_line)
            for number, texts in columns.items():
                texts.append(values[number])
    except ReaderError as read_error:
        explained_error = read_error
    for number, kind in types.items():
        if pa.types.is_string(kind):
            continue
        # A missing value is valid; "0" takes its place.
        texts = ["0" if text in dialect.nulls else text for text in columns[number][: len(lines)]]  # before that error
        wrong_index = _find_wrong(texts, kind, dialect)
        if wrong_index is None:
            continue
        text = texts[wrong_index]
        if pa.types.is_integer(kind) and convert.can_convert([text], pa.float64(), dialect):
            hint = "this column is read as integers, by its first MiB or by dtype=; "
            hint += f'dtype={{{names[number]!r}: "float64"}} reads others'
        else:
            hint = number_like.suggest_option(text, names[number], dialect)
        explained_error = ReaderError(
            f"{path}, line {lines[wrong_index]}, column {names[number]!r}: expected a number ({kind}), found {text!r}; "
            f"{hint}"
        )
        del lines[wrong_index:]  # so an error in another column is reported only if it is in an earlier record
    return explained_error


def _find_wrong(texts: Sequence[str], kind: Any, dialect: Dialect) -> int | None:
    """The index of the first text that is not a valid number of this type; None if all are."""
    if not texts or convert.can_convert(texts, kind, dialect):
        return None
    # The shortest beginning that cannot be converted ends with the first wrong text. Bisection finds it with few calls
    # of `can_convert`; one call for each text would be slow.
    return bisect.bisect_left(
        range(len(texts)), True, key=lambda index: not convert.can_convert(texts[: index + 1], kind, dialect)
    )
