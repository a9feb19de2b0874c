"""Base class of Parquet and TFRecord: typed columns of single values or of lists."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf import arguments
from matex_tf.lazy import pa
from matex_tf.readers.base import agreement
from matex_tf.readers.base.formats import Ranks, ReaderError
from matex_tf.readers.csv.number_like import agree_on_texts
from matex_tf.readers.tables.columns import Column, Columns, Place
from matex_tf.readers.tables.format import RowSurvey, TableFormat, TextCounts
from matex_tf.readers.tables.rows import CannotKeep
from matex_tf.readers.typed import values


class TypedTable(TableFormat):
    """A table of which each rank reads its rows when it is opened, and keeps them if memory allows.

    Subclasses call `_choose` in their constructor, and define the abstract methods of this class and of `TableFormat`.
    """

    def _choose(
        self,
        path: Path,
        types: Sequence[tuple[str, Any]],
        labels: Column | Sequence[Column] | None,
        columns: Column | Sequence[Column] | None,
        dtype: Any,
        shape: Any,
    ) -> None:
        """Choose the columns to read and their dtypes; `types` are the names and pyarrow types of all columns.

        Raises ReaderError for a column that is missing, or that holds neither numbers nor texts.
        """
        self.columns = Columns(path, [name for name, _ in types])
        self.columns.choose_columns(labels, columns)
        self.labelled = "labels" in self.columns.columns
        if shape is not None:
            self.columns.data_shape = _check_shape(shape)
        dtypes = self.columns.list_dtypes(dtype)
        stored = [kind for _, kind in types]
        self._bytes: dict[int, np.dtype] = {}  # of columns of bytes that hold numbers, by number: the numbers' dtype
        self._lists: list[int] = []  # the columns whose rows are lists of values, with those of `_bytes`
        found = {}
        for number in self.columns.used:
            kind, is_list = values.find_value_type(stored[number])
            if values.is_bytes(kind) and not is_list and number in dtypes and dtypes[number].kind in "biuf":
                self._bytes[number] = dtypes[number]
                # The bytes of a row may hold several numbers, so `_view_lists` makes lists of them.
                kind, is_list = pa.from_numpy_dtype(dtypes[number]), True
            values.check_type(path, self.columns.names[number], stored[number], kind, dtypes.get(number))
            found[number] = kind
            if is_list:
                self._lists.append(number)
        self.columns.choose_types({number: values.find_plain_type(kind) for number, kind in found.items()}, dtype)

    @abstractmethod
    def read_batches(self, start: int, stop: int, numbers: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yield the rows `start` to `stop` in blocks: (number of the first row, pyarrow record batch).

        The record batches have the columns `numbers`, named by number, in stored types.
        """

    def survey_rows(self, ranks: Ranks, keep: bool) -> RowSurvey:
        """Agree on the widths of lists; then each rank reads its rows, if it has the memory to keep them."""
        if self._lists:
            self._set_widths((yield self._find_widths(ranks)))
        self._check_row_shape()
        rows = None
        if keep:
            with contextlib.suppress(CannotKeep):
                rows = self._take_rows(*self.list_parts(ranks)[ranks.rank], self._find_room(ranks))
        have_kept = yield rows is not None
        return rows if all(have_kept) else None, self.count_parts(ranks)

    # Lists: the number of values of each row.

    def _find_widths(self, ranks: Ranks) -> dict[int, int]:
        """The largest number of values of a row, by column of lists; with missing="error", of the first row."""
        if not self.count("training"):
            return {}
        batches: Iterable[Any] = []
        if self.missing != "error":
            batches = (batch for _, batch in self.read_batches(*self.list_parts(ranks)[ranks.rank], self._lists))
        elif ranks.rank == 0:
            batches = [next(self.read_batches(0, 1, self._lists))[1].slice(0, 1)]
        widths = dict.fromkeys(self._lists, 0)
        for batch in batches:
            for number in self._lists:
                lists = self._view_lists(batch.column(str(number)), number)
                widths[number] = max(widths[number], int(values.count_values(lists).max(initial=0)))
        return widths

    def _set_widths(self, found: Sequence[dict[int, int]]) -> None:
        """Set the widths of columns from the results of `_find_widths` of all ranks."""
        columns = self.columns
        for number in self._lists:
            width = columns.widths[number] = max(widths.get(number, 0) for widths in found) or 1
            if number in columns.texts and width > 1:
                raise ReaderError(
                    f"{columns.path}: expected one text a row in column {columns.names[number]!r}, found lists of them"
                )

    def _view_lists(self, column: Any, number: int) -> Any:
        if number not in self._bytes:
            return column
        try:
            return values.view_bytes(column, self._bytes[number])
        except ValueError as error:
            raise ReaderError(f"{self.columns.path}: column {self.columns.names[number]!r}: {error}") from None

    def _check_row_shape(self) -> None:
        shape = self.columns.data_shape
        if shape is None:
            return
        found = sum(self.columns.widths.get(number, 1) for number in self.columns.columns["data"])
        if int(np.prod(shape)) != found:
            raise ReaderError(
                f"{self.columns.path}: expected {int(np.prod(shape))} values in a row of data, for shape={shape}; "
                f"found {found}"
            )

    def check_texts(self, found: Sequence[TextCounts], rank: int, part: tuple[int, int]) -> None:
        for number in self.columns.texts:
            counts = [of_rank[number] for of_rank in found]
            is_requested = number in self.columns.requested_texts
            agree_on_texts(self.columns.path, self.columns.names[number], counts, is_requested)

    # Values.

    def iterate_tables(self, start: int, stop: int, fields: Sequence[str]) -> Iterator[tuple[int, Any]]:
        types = self.columns.find_types(fields)
        for first, batch in self.read_batches(start, stop, [*types]):
            agreement.stop_if_others_failed()
            columns = {
                str(number): self._convert_column(
                    batch.column(str(number)), number, kind, self.make_place_finder(first)
                )
                for number, kind in types.items()
            }
            yield first, pa.table(columns)

    def _convert_column(self, column: Any, number: int, kind: Any, place: Place) -> Any:
        """Convert a column to the type `kind`; for several values a row, to lists of `widths` values."""
        width = self.columns.widths.get(number, 1)
        if number in self._lists:
            lists = self._view_lists(column, number)
            counts = values.count_values(lists)
            wrong = counts > width if self.missing != "error" else counts != width
            if wrong.any():
                row = int(wrong.argmax())
                raise ReaderError(
                    f"{self.columns.name_value(place(row), number)}: expected {width} value(s), as in the first row, "
                    f"found {counts[row]}. missing=0 (or another number) fills shorter rows up to the longest, "
                    'missing="nan" with NaN'
                )
            column = values.pad_lists(lists, counts, width)
        dtypes = [self.columns.dtypes[field] for field, numbers in self.columns.columns.items() if number in numbers]
        # The largest number that fits into each float dtype as which the column is returned; inf if there is none.
        most = min([float(np.finfo(dtype).max) for dtype in dtypes if dtype.kind == "f"], default=np.inf)
        try:
            flat = values.convert_values(column, kind, most)
        except values.Unfit as error:
            where = self.columns.name_value(place(error.index // width), number, error.index % width)
            raise ReaderError(f"{where}: {error}") from None
        return flat if width == 1 else pa.FixedSizeListArray.from_arrays(flat, width)


def _check_shape(shape: Any) -> tuple[int, ...]:
    given = shape if isinstance(shape, (tuple, list)) else (shape,)
    are_valid = [isinstance(length, int) and not isinstance(length, bool) and length > 0 for length in given]
    if not given or not all(are_valid):
        raise TypeError(
            f"DataSet: expected shape to be the shape of a row of data, such as (28, 28); given "
            f"{arguments.describe_value(shape)}"
        )
    return tuple(given)
