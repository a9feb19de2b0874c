"""The columns of a CSV file. Sample records determine their types; pyarrow parses blocks of records into tables.

A dialect says how the file spells values: delimiters, numbers such as 1.234,5, and missing values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf.lazy import arrow_csv, pa
from matex_tf.readers.base.formats import ReaderError
from matex_tf.readers.csv import convert, errors, number_like
from matex_tf.readers.csv.dialect import Dialect
from matex_tf.readers.tables.columns import Columns, is_number, is_whole


class Table(Columns):
    """The columns of a CSV file, whose values are texts in the spelling of `dialect`."""

    def __init__(self, path: Path, names: Sequence[str], dialect: Dialect):
        super().__init__(path, names)
        self.dialect = dialect

    def learn_types(self, sample: bytes, file: Path, line: int, dtype: Any) -> None:
        """Choose the types of columns from dtype= and `sample`, complete records of `file` from line `line` on."""
        inferred_types: dict[int, Any] = dict.fromkeys(self.used, pa.null())  # no values, which count as numbers
        if sample.strip():
            place = f"{file}, line {line}"  # of the first record
            table = self.parse_records(sample, None, has_newlines=True, find_line=lambda: place)
            inferred_types = {number: table.schema.field(str(number)).type for number in self.used}
            requested_dtypes = self.list_dtypes(dtype)
            for number in self.used:
                if not (is_number(inferred_types[number]) or number in requested_dtypes):
                    self._check_text(number, table[str(number)], sample, place)
        self.choose_types(inferred_types, dtype)

    def find_default_dtype(self, field: str, kind: Any) -> np.dtype:
        """int64 for labels that are whole numbers, bools or texts, float64 for all else.

        `kind` of texts is int64, the type of their codes (`Columns.choose_types`).
        """
        return np.dtype("i8" if field == "labels" and is_whole(kind) else "f8")

    def find_types(self, fields: Iterable[str]) -> dict[int, Any]:
        """As in `Columns`, but floats are parsed as float64. A number too large for a smaller dtype is still finite
        there, and `fill_rows` finds it.
        """
        types = super().find_types(fields)
        return {number: pa.float64() if pa.types.is_floating(kind) else kind for number, kind in types.items()}

    def _check_text(self, number: int, column: Any, sample: bytes, place: str) -> None:
        """Raises ReaderError if a column that would be read as text holds mostly numbers.

        The values of `column` have no line numbers. So the sample is parsed again, for the line of the first text that
        is not a number in the dialect.
        """
        if not pa.types.is_string(column.type):
            return  # such as dates, which pyarrow recognizes
        counts = {value["values"]: value["counts"] for value in column.drop_null().value_counts().to_pylist()}
        if number_like.find_usual_number(counts) is not None:
            data = errors.clean_block(sample, self.dialect, lambda: place)
            # `mixed_error` is the cause that the error names if there is no such text.
            mixed_error = ValueError(f"numbers in several spellings in column {self.names[number]!r}")
            error = errors.explain_error(data, self.dialect, self.names, {number: pa.float64()}, place, mixed_error)
            raise ReaderError(f"{error}. Most rows of this column hold numbers")

    def parse_records(
        self, data: bytes, types: dict[int, Any] | None, has_newlines: bool, find_line: Callable[[], str]
    ) -> Any:
        """Parse the columns of `types` of complete records into a pyarrow table, whose columns are named by number.

        Args:
            types: pyarrow type of each column, by number; None: all used columns, of the types of their values.
            has_newlines: whether quoted values contain newlines.
            find_line: returns file and line of the first record, for errors.
        """
        dialect = self.dialect
        data = errors.clean_block(data, dialect, find_line)  # to UTF-8, without comments
        try:
            try:
                table = self._read_table(data, types, has_newlines)
            except pa.ArrowInvalid:
                if types is None:
                    raise
                # Numbers in a spelling that only the dialect describes: read texts, and convert them.
                number_types = {number: kind for number, kind in types.items() if _is_number(kind)}
                table = self._read_table(data, types | dict.fromkeys(number_types, pa.string()), has_newlines)
                for number, kind in number_types.items():
                    table = _put_column(table, number, convert.convert_column(table[str(number)], kind, dialect))
        except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
            raise errors.explain_error(data, dialect, self.names, types or {}, find_line(), error) from None
        for name in table.column_names:
            # Texts may be numbers in a spelling of the dialect. Some numbers stand for missing values (`null_numbers`).
            if types is None and pa.types.is_string(table[name].type):
                converted = convert.recognise_column(table[name], dialect)
                table = table if converted is None else _put_column(table, name, converted)
            if dialect.null_numbers:
                table = _put_column(table, name, convert.drop_null_numbers(table[name], dialect))
        return table

    def _read_table(self, data: bytes, types: dict[int, Any] | None, has_newlines: bool) -> Any:
        """As `parse_records`, by pyarrow's rules for numbers alone. Raises ArrowInvalid for other spellings."""
        dialect, quote = self.dialect, self.dialect.marks.quote
        # pyarrow parses in blocks of its own. A record must fit into one of them, and types are inferred from the
        # first. Without newlines in values the first line shows about how long a record is. Otherwise all data are one
        # block.
        read_options = arrow_csv.ReadOptions(
            column_names=[str(number) for number in range(len(self.names))],
            block_size=len(data) + 1 if has_newlines or types is None else max(1 << 20, data.find(b"\n") * 4),
        )
        parse_options = arrow_csv.ParseOptions(
            delimiter=dialect.delimiter,
            quote_char=chr(quote) if quote else False,
            newlines_in_values=has_newlines and quote is not None,
        )
        convert_options = arrow_csv.ConvertOptions(
            include_columns=[str(number) for number in (self.used if types is None else types)],
            column_types={str(number): kind for number, kind in types.items()} if types else None,
            null_values=dialect.nulls,
            strings_can_be_null=True,
            decimal_point=dialect.decimal,
        )
        # Arrow's own memory pool would keep the memory of the blocks.
        return arrow_csv.read_csv(
            pa.BufferReader(data), read_options, parse_options, convert_options, memory_pool=pa.system_memory_pool()
        )


def _is_number(kind: Any) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _put_column(table: Any, name: int | str, column: Any) -> Any:
    """The table with another column `name`. Raises ArrowInvalid for None, a failed conversion."""
    if column is None:
        raise pa.ArrowInvalid("no number")
    return table.set_column(table.column_names.index(str(name)), str(name), column)
