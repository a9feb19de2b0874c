"""The columns of a CSV file. Sample records determine their types; pyarrow parses blocks of records into tables.

A dialect says how the file spells values: delimiters, numbers such as 1.234,5, and missing values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf.lazy import pa
from matex_tf.readers.base.formats import ReaderError
from matex_tf.readers.csv import blocks, errors, number_like
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
            table = blocks.parse_block(
                sample, self.names, self.used, None, self.dialect, has_newlines=True, find_line=lambda: place
            )
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
        if number_like.are_numbers(counts):
            data = errors.clean_block(sample, self.dialect, lambda: place)
            # `mixed_error` is the cause that the error names if there is no such text.
            mixed_error = ValueError(f"numbers in several spellings in column {self.names[number]!r}")
            error = errors.explain_error(data, self.dialect, self.names, {number: pa.float64()}, place, mixed_error)
            raise ReaderError(f"{error}. Most rows of this column hold numbers")

    def find_number_among_texts(self, counts: Mapping[int, Mapping[str, int]]) -> tuple[int, str] | None:
        """A column of text that has numbers in most rows, and one of these numbers; None if there is no such column.

        The caller reports a line with this number. Columns that dtype= requests as text are valid.

        `counts`: for each column, the number of rows with each value.
        """
        for number in sorted(set(self.texts) - self.requested_texts):
            if number_like.are_numbers(counts[number]):
                return number, min(number_like.find_numbers(counts[number]))
        return None

    def parse_records(
        self, data: bytes, types: dict[int, Any], has_newlines: bool, find_line: Callable[[], str]
    ) -> Any:
        """Parse the columns of `types` of the records in `data`. For the arguments see `blocks.parse_block`."""
        return blocks.parse_block(data, self.names, list(types), types, self.dialect, has_newlines, find_line)
