"""The columns of a CSV file. A sample determines their types; pyarrow parses blocks of records into tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf.lazy import pa
from matex_tf.readers.base.formats import ReaderError
from matex_tf.readers.csv import blocks, errors, number_like
from matex_tf.readers.csv.dialect import Dialect
from matex_tf.readers.tables.columns import Columns, is_number, is_whole


class Table(Columns):
    """Columns of text in the spelling of `dialect`."""

    def __init__(self, path: Path, names: Sequence[str], dialect: Dialect):
        super().__init__(path, names)
        self.dialect = dialect

    def learn_types(self, sample: bytes, file: Path, line: int, dtype: Any) -> None:
        """Infer the type of each column from `sample`, complete records of `file` from line `line` on, and `dtype`."""
        found: dict[int, Any] = dict.fromkeys(self.used, pa.null())
        if sample.strip():
            place = f"{file}, line {line}"
            table = blocks.parse_block(sample, self.names, self.used, None, self.dialect, True, lambda: place)
            found = {number: table.schema.field(str(number)).type for number in self.used}
            requested = self.list_dtypes(dtype)
            for number in self.used:
                if not (is_number(found[number]) or number in requested):
                    self._check_text(number, table[str(number)], sample, place)
        self.choose_types(found, dtype)

    def find_usual_dtype(self, field: str, kind: Any) -> np.dtype:
        return np.dtype("i8" if field == "labels" and is_whole(kind) else "f8")

    def _check_text(self, number: int, column: Any, sample: bytes, place: str) -> None:
        """Raises ReaderError if a column that would be read as text holds mostly numbers."""
        if not pa.types.is_string(column.type):
            return  # dates and the like
        counts = {value["values"]: value["counts"] for value in column.drop_null().value_counts().to_pylist()}
        if number_like.are_numbers(counts):
            data = errors.clean_block(sample, self.dialect, lambda: place)
            mixed = ValueError(f"numbers in several spellings in column {self.names[number]!r}")
            error = errors.explain_error(data, self.dialect, self.names, {number: pa.float64()}, place, mixed)
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

    def parse_records(self, data: bytes, fields: Sequence[str], newlines: bool, line: Callable[[], str]) -> Any:
        """Parse the records in `data` into a pyarrow table of the columns of `fields`, named by their numbers. Without
        fields, the columns of text.

        `newlines`: whether quoted values contain newlines. `line` returns the position of the first record, for errors.
        """
        types = self.find_types(fields)
        return blocks.parse_block(data, self.names, list(types), types, self.dialect, newlines, line)
