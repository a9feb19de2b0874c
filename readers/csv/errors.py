"""What is wrong with a piece of a CSV file, for a person: its line, its column, what was expected and found."""

from __future__ import annotations

import bisect
import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matex_tf.readers.base.formats import ReaderError


def read_rows(
    path: Path, data: bytes, delimiter: str, quote: int | None, line: int = 1
) -> Iterator[tuple[int, list[str]]]:
    """(line, values) of each record, by Python's own slow reader. Raises ReaderError for what is not UTF-8."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        at = line + data[: error.start].count(b"\n")
        raise ReaderError(
            f"{path}, line {at}: expected text in UTF-8, found the byte {data[error.start]:02x}"
        ) from None
    style: dict[str, Any] = (
        {"quoting": csv.QUOTE_NONE} if quote is None else {"quotechar": chr(quote), "doublequote": True}
    )
    csv.field_size_limit(max(csv.field_size_limit(), len(text) + 1))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, **style)
    before = 0
    try:
        for values in reader:
            yield line + before, values
            before = reader.line_num
    except csv.Error as error:
        raise ReaderError(f"{path}, line {line + before}: expected a record, found: {error}") from None


def explain_error(
    path: Path,
    data: bytes,
    delimiter: str,
    quote: int | None,
    names: Sequence[str],
    types: dict[int, Any],
    nulls: Sequence[str],
    line: int,
    error: Exception,
) -> ReaderError:
    """The error for a piece that pyarrow could not parse as `types`, which begins at `line`."""
    import pyarrow as pa

    lines: list[int] = []
    columns: dict[int, list[str]] = {number: [] for number in types}
    wrong = ReaderError(f"{path}, from line {line} on: expected a table of {len(names)} columns, found: {error}")
    try:
        for at, values in read_rows(path, data, delimiter, quote, line):
            if not values:
                continue
            if len(values) != len(names):
                wrong = ReaderError(f"{path}, line {at}: expected {len(names)} values, found {len(values)}")
                break
            lines.append(at)
            for number, texts in columns.items():
                texts.append(values[number])
    except ReaderError as found:
        wrong = found
    for number, kind in types.items():
        if pa.types.is_string(kind):
            continue
        texts = ["0" if text in nulls else text for text in columns[number][: len(lines)]]
        index = _find_wrong(texts, kind)
        if index is None:
            continue
        text = texts[index]
        hint = (
            "; by the first MiB, or by dtype=, this column is read as integers; "
            f'dtype={{{names[number]!r}: "float64"}} reads others'
            if pa.types.is_integer(kind) and _can_convert([text], pa.float64())
            else ""
        )
        wrong = ReaderError(
            f"{path}, line {lines[index]}, column {names[number]!r}: expected a number ({kind}), found {text!r}{hint}"
        )
        del lines[index:]  # an error in another column counts if it stands in an earlier record
    return wrong


def _find_wrong(texts: Sequence[str], kind: Any) -> int | None:
    """The index of the first text that pyarrow does not take as a number of this type."""
    if not texts or _can_convert(texts, kind):
        return None
    return bisect.bisect_left(range(len(texts)), True, key=lambda index: not _can_convert(texts[: index + 1], kind))


def _can_convert(texts: Sequence[str], kind: Any) -> bool:
    """Whether pyarrow takes all texts as numbers of this type."""
    import pyarrow as pa
    from pyarrow import csv

    data = "".join('"' + text.strip().replace('"', '""') + '"\n' for text in texts).encode()
    try:
        csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(column_names=["x"], block_size=len(data) + 1),
            csv.ParseOptions(newlines_in_values=True),
            csv.ConvertOptions(column_types={"x": kind}),
        )
    except pa.ArrowInvalid:
        return False
    return True
