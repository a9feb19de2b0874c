"""What is wrong with a piece of a CSV file, for a person: its line, its column, what was expected and found."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matex_tf.readers.base.formats import ReaderError


def rows(path: Path, data: bytes, delimiter: str, quote: int | None, line: int = 1) -> Iterator[tuple[int, list[str]]]:
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


def explain(
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

    try:
        for at, values in rows(path, data, delimiter, quote, line):
            if not values:
                continue
            if len(values) != len(names):
                return ReaderError(f"{path}, line {at}: expected {len(names)} values, found {len(values)}")
            for number, kind in types.items():
                text = values[number]
                if text in nulls or pa.types.is_string(kind):
                    continue
                if not _converts(text, kind):
                    hint = (
                        "; by the first MiB, or by dtype=, this column is read as integers; "
                        f'dtype={{{names[number]!r}: "float64"}} reads others'
                        if pa.types.is_integer(kind) and _converts(text, pa.float64())
                        else ""
                    )
                    return ReaderError(
                        f"{path}, line {at}, column {names[number]!r}: expected a number ({kind}), found {text!r}{hint}"
                    )
    except ReaderError as found:
        return found
    return ReaderError(f"{path}, from line {line} on: expected a table of {len(names)} columns, found: {error}")


def _converts(text: str, kind: Any) -> bool:
    """Whether pyarrow takes the text as a number of this type."""
    import pyarrow as pa
    from pyarrow import csv

    if pa.types.is_floating(kind):
        try:
            return float(text) is not None  # nearly all are; asking pyarrow takes a hundred times as long
        except ValueError:
            pass
    try:
        csv.read_csv(
            pa.BufferReader(b'"' + text.strip().encode().replace(b'"', b'""') + b'"\n'),
            csv.ReadOptions(column_names=["x"]),
            csv.ParseOptions(newlines_in_values=True),
            csv.ConvertOptions(column_types={"x": kind}),
        )
    except pa.ArrowInvalid:
        return False
    return True
