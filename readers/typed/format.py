"""Base class of Parquet and TFRecord: typed columns of single values or of lists.

Opening has up to four surveys (see `Format`). In a survey NAME each rank searches its part of the files by
`_survey_NAME`; then every rank calls `_settle_NAME` with the results of all ranks. "widths" finds the number of values
of lists. "room" finds whether every rank has enough memory to keep its rows; if so, "rows" reads and keeps them.
"texts" collects the values of columns of text.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf import arguments
from matex_tf.lazy import pa
from matex_tf.readers.arrays.texts import agree_on_texts
from matex_tf.readers.base import agreement
from matex_tf.readers.base.formats import KeptRows, Ranks, ReaderError
from matex_tf.readers.tables.columns import Column, Columns, FindPlace
from matex_tf.readers.tables.format import TableFormat
from matex_tf.readers.tables.rows import Rows
from matex_tf.readers.typed import values


class TypedTable(TableFormat):
    """A table of which each rank reads its rows when it is opened, and keeps them if memory allows.

    Subclasses call `_choose_columns` in their constructor, and define the abstract methods of this class and of
    `TableFormat`.
    """

    def _choose_columns(
        self,
        path: Path,
        types: Sequence[tuple[str, Any]],
        labels: Column | Sequence[Column] | None,
        columns: Column | Sequence[Column] | None,
        dtype: Any,
        shape: Any,
        first_surveys: Mapping[str, bool] | None = None,
    ) -> None:
        """Choose the columns to read and their dtypes; `types` are the names and pyarrow types of all columns.

        Raises ReaderError for a column that is missing, or that holds neither numbers nor texts.

        `first_surveys`: surveys that run before the common ones, as in `_set_surveys`.
        """
        self.columns = Columns(path, [name for name, _ in types])
        self.columns.choose_columns(labels, columns)
        self.labelled = "labels" in self.columns.columns
        if shape is not None:
            self.columns.data_shape = _check_shape(shape)
        dtypes = self.columns.list_dtypes(dtype)
        self._packed_dtypes: dict[int, np.dtype] = {}  # by column of bytes that hold numbers: the numbers' dtype
        self._list_columns: list[int] = []  # columns whose rows are lists of values; also the keys of `_packed_dtypes`
        plain_types = {}
        for number in self.columns.used:
            name, stored_type = types[number]
            kind, is_list = values.find_value_type(stored_type)
            if values.is_bytes(kind) and not is_list and number in dtypes and dtypes[number].kind in "biuf":
                self._packed_dtypes[number] = dtypes[number]
                # The bytes of a row may hold several numbers, so `_view_lists` makes lists of them.
                kind, is_list = pa.from_numpy_dtype(dtypes[number]), True
            values.check_type(path, name, stored_type, kind, dtypes.get(number))
            plain_types[number] = values.find_plain_type(kind)  # floats for decimals, integers for times
            if is_list:
                self._list_columns.append(number)
        self.columns.choose_types(plain_types, dtype)
        has_lists, has_texts = bool(self._list_columns), bool(self.columns.texts)
        self._set_surveys(**(first_surveys or {}), widths=has_lists, room=True, rows=True, texts=has_texts)

    @abstractmethod
    def read_batches(self, start: int, stop: int, numbers: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yield the rows `start` to `stop` in blocks: (number of the first row, pyarrow record batch).

        The record batches have the columns `numbers`, named by number, in stored types.
        """

    def read_first(self, numbers: Sequence[int]) -> Any:
        """A record batch that begins with the first row."""
        return next(self.read_batches(0, 1, numbers))[1]

    # Lists: the number of values of each row.

    def _survey_widths(self, ranks: Ranks) -> dict[int, int]:
        """For each column of lists, the largest number of values of a row in this rank's rows.

        With missing="error" all rows must have as many values as the first, so only rank 0 reads that row.
        """
        if not self.count("training"):
            return {}
        batches: Iterable[Any] = []
        if self.missing != "error":
            batches = (batch for _, batch in self.read_batches(*self.list_parts(ranks)[ranks.rank], self._list_columns))
        elif ranks.rank == 0:
            batches = [self.read_first(self._list_columns).slice(0, 1)]
        widths = dict.fromkeys(self._list_columns, 0)
        for batch in batches:
            for number in self._list_columns:
                lists = self._view_lists(batch.column(str(number)), number)
                widths[number] = max(widths[number], int(values.count_values(lists).max(initial=0)))
        return widths

    def _settle_widths(self, ranks: Ranks, results: Sequence[dict[int, int]]) -> None:
        columns = self.columns
        for number in self._list_columns:
            width = columns.widths[number] = max(widths.get(number, 0) for widths in results) or 1
            if number in columns.texts and width > 1:
                raise ReaderError(
                    f"{columns.path}: expected one text a row in column {columns.names[number]!r}, found lists of them"
                )

    def _view_lists(self, column: Any, number: int) -> Any:
        """A stored column as lists of values; bytes that hold numbers as lists of numbers."""
        if number not in self._packed_dtypes:
            return column
        try:
            return values.view_bytes(column, self._packed_dtypes[number])
        except ValueError as error:
            raise ReaderError(f"{self.columns.path}: column {self.columns.names[number]!r}: {error}") from None

    # Rows: each rank reads its rows once, and keeps them.

    def _survey_room(self, ranks: Ranks) -> bool:
        """Whether this rank has enough memory to keep its rows."""
        self._check_row_shape()
        start, stop = self.list_parts(ranks)[ranks.rank]
        row_bytes = sum(
            int(np.prod(self.columns.compute_shape(field, 1))) * self.columns.find_dtype(field, self.missing).itemsize
            for field in self.columns.columns
        )
        can_hold_texts = Rows(self.columns, self.missing).can_hold_texts()
        return can_hold_texts and row_bytes * (stop - start) <= self._find_room(ranks)

    def _settle_room(self, ranks: Ranks, results: Sequence[bool]) -> None:
        self.keep = self.keep and all(results)

    def _survey_rows(self, ranks: Ranks) -> None:
        if self.keep:
            self._rows = self._read_all_fields(*self.list_parts(ranks)[ranks.rank])

    def _settle_rows(self, ranks: Ranks, results: Sequence[None]) -> None:
        if self._rows is not None:
            self.kept = KeptRows([stop - start for start, stop in self.list_parts(ranks)], self._rows.buffers)

    def _check_row_shape(self) -> None:
        """Raises ReaderError if the option shape= does not fit the number of values of a row."""
        shape = self.columns.data_shape
        if shape is None:
            return
        value_count = sum(self.columns.find_width(number) for number in self.columns.columns["data"])
        if int(np.prod(shape)) != value_count:
            raise ReaderError(
                f"{self.columns.path}: expected {int(np.prod(shape))} values in a row of data, for shape={shape}; "
                f"found {value_count}"
            )

    def check_texts(self, found: Sequence[Mapping[int, Mapping[str, int]]], ranks: Ranks) -> None:
        """Called by `TableFormat._settle_texts`; see `TableFormat.check_texts`."""
        for number in self.columns.texts:
            counts = [rank_counts[number] for rank_counts in found]
            is_requested = number in self.columns.requested_texts
            agree_on_texts(self.columns.path, self.columns.names[number], counts, is_requested)

    # Values.

    def iterate_tables(self, start: int, stop: int, types: dict[int, Any]) -> Iterator[tuple[int, Any]]:
        for first, batch in self.read_batches(start, stop, [*types]):
            agreement.stop_if_others_failed()
            columns = {
                str(number): self._convert_column(
                    batch.column(str(number)), number, kind, self.make_place_finder(first)
                )
                for number, kind in types.items()
            }
            yield first, pa.table(columns)

    def _convert_column(self, column: Any, number: int, kind: Any, find_place: FindPlace) -> Any:
        """Convert a stored column to the type `kind`; if a row has several values, to lists of equal lengths."""
        width = self.columns.find_width(number)
        if number in self._list_columns:
            lists = self._view_lists(column, number)
            counts = values.count_values(lists)
            is_wrong = counts > width if self.missing != "error" else counts != width
            if is_wrong.any():
                row = int(is_wrong.argmax())
                place = self.columns.name_value(find_place(row), number)
                raise ReaderError(
                    f"{place}: expected {width} value(s), as in the first row, "
                    f"found {counts[row]}. missing=0 (or another number) fills shorter rows up to the longest, "
                    'missing="nan" with NaN'
                )
            column = values.pad_lists(lists, counts, width)
        try:
            flat_values = values.convert_values(column, kind)
        except values.Unfit as error:
            place = self.columns.name_value(find_place(error.index // width), number, error.index % width)
            raise ReaderError(f"{place}: {error}") from None
        return flat_values if width == 1 else pa.FixedSizeListArray.from_arrays(flat_values, width)


def _check_shape(shape: Any) -> tuple[int, ...]:
    lengths = shape if isinstance(shape, (tuple, list)) else (shape,)
    are_valid = [isinstance(length, int) and not isinstance(length, bool) and length > 0 for length in lengths]
    if not lengths or not all(are_valid):
        raise TypeError(
            f"DataSet: expected shape to be the shape of a row of data, such as (28, 28); given "
            f"{arguments.describe_value(shape)}"
        )
    return tuple(lengths)
