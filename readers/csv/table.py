"""The columns of a CSV file. A sample determines their types; pyarrow parses blocks of records into tables.

Values that pyarrow rejects are parsed by the rules of the dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf.lazy import arrow_csv, pa
from matex_tf.readers.base.formats import ReaderError
from matex_tf.readers.csv import convert, errors, number_like
from matex_tf.readers.csv.dialect import Dialect
from matex_tf.readers.csv.errors import Line
from matex_tf.readers.tables.columns import Columns, is_number, is_whole


class Table(Columns):
    """Columns of text in the spelling of `dialect`."""

    def __init__(self, path: Path, names: Sequence[str], dialect: Dialect):
        super().__init__(path, names)
        self.dialect = dialect

    def learn_types(self, sample: bytes, line: Line, dtype: Any) -> None:
        """Infer the type of each column from `sample`, complete records from `line` on, and the option dtype=."""
        found: dict[int, Any] = dict.fromkeys(self.used, pa.null())
        if sample.strip():
            table = self._parse_block(sample, self.used, None, True, lambda: line)
            found = {number: table.schema.field(str(number)).type for number in self.used}
            requested = self.list_dtypes(dtype)
            for number in self.used:
                if not (is_number(found[number]) or number in requested):
                    self._check_text(number, table[str(number)], sample, line)
        self.choose_types(found, dtype)

    def find_usual_dtype(self, field: str, kind: Any) -> np.dtype:
        return np.dtype("i8" if field == "labels" and is_whole(kind) else "f8")

    def _check_text(self, number: int, column: Any, sample: bytes, line: Line) -> None:
        """Raises ReaderError if a column that would be read as text holds mostly numbers."""
        if not pa.types.is_string(column.type):
            return  # dates and the like
        counts = {value["values"]: value["counts"] for value in column.drop_null().value_counts().to_pylist()}
        if number_like.are_numbers(counts):
            data = errors.clean_block(sample, self.dialect, lambda: line)
            mixed = ValueError(f"numbers in several spellings in column {self.names[number]!r}")
            error = errors.explain_error(data, self.dialect, self.names, {number: pa.float64()}, line, mixed)
            raise ReaderError(f"{error}. Most rows of this column hold numbers")

    def find_number_among_texts(self, counts: Mapping[int, Mapping[str, int]]) -> tuple[int, str] | None:
        """Returns a column of text with numbers in most rows, and one of these numbers; None if there is no such
        column.

        `counts`: for each column, the number of rows with each value.
        """
        for number in sorted(set(self.texts) - self.requested_texts):
            if number_like.are_numbers(counts[number]):
                return number, min(number_like.find_numbers(counts[number]))
        return None

    def parse_records(self, data: bytes, fields: Sequence[str], newlines: bool, find_line: Callable[[], Line]) -> Any:
        """Parse the records in `data` into a pyarrow table of the columns of `fields`, named by their numbers. Without
        fields, the columns of text.

        `newlines`: whether quoted values contain newlines. `find_line` returns the line of the first record.
        """
        types = self.find_types(fields)
        return self._parse_block(data, list(types), types, newlines, find_line)

    def _parse_block(
        self,
        data: bytes,
        numbers: Sequence[int],
        types: dict[int, Any] | None,
        newlines: bool,
        find_line: Callable[[], Line],
    ) -> Any:
        """As `parse_records`, for the columns `numbers`. `types`: their types; None infers them from the values."""
        data = errors.clean_block(data, self.dialect, find_line)
        try:
            try:
                table = self._read_table(data, numbers, types, newlines)
            except pa.ArrowInvalid:
                if types is None:
                    raise
                # Numbers in a spelling that only the dialect describes: read texts, and convert them.
                texts = {number: pa.string() if _is_number(kind) else kind for number, kind in types.items()}
                table = self._read_table(data, numbers, texts, newlines)
                for number, kind in types.items():
                    if _is_number(kind):
                        column = convert.convert_column(table[str(number)], kind, self.dialect)
                        table = _put_column(table, number, column)
        except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
            raise errors.explain_error(data, self.dialect, self.names, types or {}, find_line(), error) from None
        for number in numbers:
            column = table[str(number)]
            if types is None and pa.types.is_string(column.type):
                found = convert.recognise_column(column, self.dialect)
                table = table if found is None else _put_column(table, number, found)
            if self.dialect.null_numbers:
                table = _put_column(table, number, convert.drop_null_numbers(table[str(number)], self.dialect))
        return table

    def _read_table(self, data: bytes, numbers: Sequence[int], types: dict[int, Any] | None, newlines: bool) -> Any:
        """`_parse_block` of a clean block by pyarrow alone, with its rules for numbers."""
        quote = self.dialect.marks.quote
        # pyarrow infers types from its first block only, and a record must fit into its blocks. Without newlines in
        # values the first line shows about how long a record is; otherwise all data are one block.
        read = arrow_csv.ReadOptions(
            column_names=[str(number) for number in range(len(self.names))],
            block_size=len(data) + 1 if newlines or types is None else max(1 << 20, data.find(b"\n") * 4),
        )
        parse = arrow_csv.ParseOptions(
            delimiter=self.dialect.delimiter,
            quote_char=chr(quote) if quote else False,
            newlines_in_values=newlines and quote is not None,
        )
        converting = arrow_csv.ConvertOptions(
            include_columns=[str(number) for number in numbers],
            column_types={str(number): kind for number, kind in types.items()} if types else None,
            null_values=self.dialect.nulls,
            strings_can_be_null=True,
            decimal_point=self.dialect.decimal,
        )
        # Arrow's own memory pool would keep the memory of the blocks.
        pool = pa.system_memory_pool()
        return arrow_csv.read_csv(pa.BufferReader(data), read, parse, converting, memory_pool=pool)


def _is_number(kind: Any) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _put_column(table: Any, number: int, column: Any) -> Any:
    """The table with another column `number`. Raises ArrowInvalid for None, a failed conversion."""
    if column is None:
        raise pa.ArrowInvalid("no number")
    name = str(number)
    return table.set_column(table.schema.get_field_index(name), name, column)
