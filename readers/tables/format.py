"""Base class of table formats: rows are read as pyarrow tables, and texts become integers."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from matex_tf import arguments, memory
from matex_tf.lazy import pa, pc
from matex_tf.readers.base import files
from matex_tf.readers.base.formats import MOST_TEXTS, Format, Held, Ranks, Survey
from matex_tf.readers.tables.columns import Columns, Place
from matex_tf.readers.tables.rows import Rows, make_category_error
from matex_tf.sharding import slice_bounds
from matex_tf.sharding.shard_arrays import ShardArray

RowSurvey = Generator[Any, Sequence[Any], "tuple[Rows | None, Sequence[int]]"]
"""See `TableFormat.survey_rows`."""
TextCounts = Mapping[int, Mapping[str, int]]
"""For each column of text, the number of rows with each value."""


class TableFormat(Format):
    """A table of one file or of several files that are concatenated.

    Subclasses set `columns`, find and count rows in `survey_rows`, and yield tables of some rows.

    Args:
        memory: most bytes of rows that a rank keeps while the table is opened; None: see `_find_room`.
    """

    columns: Columns

    def __init__(self, path: Any, memory: int | None) -> None:
        self.files = files.find_files(path)
        if memory is not None:
            arguments.check_whole_number("DataSet", "memory, in bytes,", memory, 0)
        self._memory = memory
        self.categories = {}
        self._values: dict[int, list[str]] = {}  # the texts of each column of text, in the order of their integers

    @abstractmethod
    def survey_rows(self, ranks: Ranks, keep: bool) -> RowSurvey:
        """The first part of `survey`: find the rows, so that they can be counted and read.

        Returns, with `keep`, the rows that this rank has read, if every rank has kept its rows, and otherwise None; and
        the number of rows of each rank, the first rows of the table on rank 0.
        """

    @abstractmethod
    def iterate_tables(self, start: int, stop: int, fields: Sequence[str]) -> Iterator[tuple[int, Any]]:
        """Yield the rows `start` to `stop` in blocks: (number of the first row, pyarrow table).

        The tables have the columns of `fields` with the types of `Columns.find_types`; without fields, the columns of
        text.
        """

    @abstractmethod
    def find_place(self, row: int) -> str:
        """File and position of a row, for messages."""

    def make_place_finder(self, first: int) -> Place:
        """As `find_place`, for rows of a block, which are counted from row `first` on."""
        return lambda row: self.find_place(first + row)

    def list_parts(self, ranks: Ranks) -> list[tuple[int, int]]:
        """The rows (start, stop) that each rank reads when the table is opened."""
        return [slice_bounds.deal_block(self.count("training"), rank, ranks.size) for rank in range(ranks.size)]

    def count_parts(self, ranks: Ranks) -> list[int]:
        """The numbers of rows of `list_parts`."""
        return [stop - start for start, stop in self.list_parts(ranks)]

    def describe(self) -> str:
        return self.columns.describe_columns()

    def survey(self, ranks: Ranks, keep: bool) -> Survey:
        rows, counts = yield from self.survey_rows(ranks, keep)
        if self.columns.texts:
            first = sum(counts[: ranks.rank])
            part = first, first + counts[ranks.rank]
            found = yield self._count_texts(*part) if rows is None else rows.values
            self._set_categories(found)
            self.check_texts(found, ranks.rank, part)
            self.columns.check_categories(self._values)
            if rows is not None:
                rows.settle_categories(self._values)
        return None if rows is None else Held(counts, rows.buffers)

    def check_texts(self, found: Sequence[TextCounts], rank: int, part: tuple[int, int]) -> None:
        """Raises ReaderError if the texts `found` by the ranks, with their counts, are not valid as texts.

        `part`: the rows in which this rank, `rank`, has found its texts.
        """

    def read(self, part: str, field: str, start: int, stop: int) -> np.ndarray:
        rows = ShardArray(self.columns.compute_shape(field, stop - start), self.columns.find_dtype(field, self.missing))
        for first, table in self.iterate_tables(start, stop, [field]):
            target = rows[first - start : first - start + len(table)]
            self.columns.fill_rows(
                target, table, field, self._encode_column, self.missing, self.make_place_finder(first)
            )
        return rows

    def place(self, part: str, field: str, row: int, index: tuple[int, ...]) -> str:
        return self.columns.name_value(self.find_place(row), *self.columns.locate(field, index))

    def _encode_column(self, number: int, column: Any) -> np.ndarray:
        """The final integers of a column of texts; NaN or missing= for a missing text."""
        codes = pc.index_in(column, value_set=pa.array(self._values[number], pa.string()))
        if codes.null_count and self.missing not in ("error", "nan"):
            codes = codes.cast(pa.float64()).fill_null(float(self.missing))
        return codes.to_numpy()

    def _take_rows(self, start: int, stop: int, max_bytes: int) -> Rows:
        """The rows `start` to `stop` of every field. Raises CannotKeep."""
        rows = Rows(self.columns, self.missing, max_bytes)
        for first, table in self.iterate_tables(start, stop, list(self.columns.columns)):
            remaining = (stop - first - len(table)) / max(1, len(table))
            rows.append_table(table, remaining, self.make_place_finder(first))
        rows.finish_rows()
        return rows

    def _count_texts(self, start: int, stop: int) -> dict[int, Counter[str]]:
        """For each column of text, how many of the rows `start` to `stop` have each value."""
        values: dict[int, Counter[str]] = {number: Counter() for number in self.columns.texts}
        for _, table in self.iterate_tables(start, stop, []):
            for number, total in values.items():
                new = table[str(number)].combine_chunks().drop_null().value_counts()
                total.update(dict(zip(new.field("values").to_pylist(), new.field("counts").to_pylist(), strict=True)))
                if len(total) > MOST_TEXTS:
                    raise make_category_error(self.columns, number)
        return values

    def _set_categories(self, found: Sequence[TextCounts]) -> None:
        """Set the categories from the texts of all ranks."""
        texts = self.columns.texts
        self._values = {number: sorted({text for of_rank in found for text in of_rank[number]}) for number in texts}
        self.categories = {self.columns.names[number]: values for number, values in self._values.items()}

    def _find_room(self, ranks: Ranks) -> int:
        """The maximum bytes of rows that this rank keeps: by default its share of half of its host's free memory."""
        local_ranks = sum(host == ranks.hosts[ranks.rank] for host in ranks.hosts)
        return memory.measure_free() // 2 // local_ranks if self._memory is None else self._memory
