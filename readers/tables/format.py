"""Base class of table formats (CSV, Parquet, TFRecord): rows are read as pyarrow tables, and texts become integers."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf import arguments, memory
from matex_tf.lazy import pa, pc
from matex_tf.readers.base import files
from matex_tf.readers.base.formats import Format, Ranks
from matex_tf.readers.base.unpacking import Unpacking
from matex_tf.readers.tables.columns import Columns, FindPlace
from matex_tf.readers.tables.rows import MOST_CATEGORIES, Rows, make_category_error
from matex_tf.sharding import slice_bounds
from matex_tf.sharding.shard_arrays import ShardArray


class TableFormat(Format):
    """A table of one file or of several files that are concatenated.

    Subclasses set `columns`, count rows, and yield tables of some rows. They name their surveys by `_set_surveys`. In a
    survey (see `Format`), when a data set is opened, each rank searches its part of the files, and then gets the
    results of all ranks. A survey NAME consists of the methods `_survey_NAME` and `_settle_NAME`. This class has both
    methods of "texts", which counts the texts of the ranks' rows, and of "unpack", which decompresses files.

    The code of a text is final once all ranks know all texts: its index in their sorted list. Before, a rank that keeps
    rows numbers its own texts by temporary codes (`Rows`).

    Args:
        memory: most bytes of rows that a rank keeps while the table is opened; None: see `_find_room`.
    """

    columns: Columns
    _unpacking: Unpacking | None = None  # set by subclasses that read compressed files

    def __init__(self, path: Any, memory: int | None) -> None:
        self.files = files.find_files(path)
        if memory is not None:
            arguments.check_whole_number("DataSet", "memory, in bytes,", memory, 0)
        self._memory = memory
        self.categories = {}
        # For each column of text: its texts in the order of their codes. Set by the survey "texts".
        self._values: dict[int, list[str]] = {}
        # By compressed file, a file with its contents. They are removed after the last survey, so a survey opens them.
        self._temporary_files: dict[Path, Path] = {}
        self._rows: Rows | None = None  # the rows that this rank has kept, if a subclass has read rows in a survey

    @abstractmethod
    def iterate_tables(self, start: int, stop: int, types: dict[int, Any]) -> Iterator[tuple[int, Any]]:
        """Yield the rows `start` to `stop` in blocks: (number of the first row, pyarrow table).

        `types`: the pyarrow type of each column of the tables, by number (see `Columns.find_types`).
        """

    @abstractmethod
    def find_place(self, row: int) -> str:
        """File and position of a row, for messages."""

    def make_place_finder(self, first: int) -> FindPlace:
        """The function `find_place` for the rows of a block that begins with row `first`."""
        return lambda row: self.find_place(first + row)

    def list_parts(self, ranks: Ranks) -> list[tuple[int, int]]:
        """The rows (start, stop) that each rank reads in the surveys, in rank order."""
        return [slice_bounds.deal_block(self.count("training"), rank, ranks.size) for rank in range(ranks.size)]

    def _set_surveys(self, **are_needed: bool) -> None:
        """Choose the surveys, in the order of the arguments: `_set_surveys(unpack=False, texts=True)`."""
        self._survey_names = [name for name, is_needed in are_needed.items() if is_needed]
        self.surveys = len(self._survey_names)

    def describe(self) -> str:
        return self.columns.describe_columns()

    def survey(self, turn: int, ranks: Ranks) -> Any:
        return getattr(self, f"_survey_{self._survey_names[turn]}")(ranks)

    def settle(self, turn: int, ranks: Ranks, found: Sequence[Any]) -> None:
        getattr(self, f"_settle_{self._survey_names[turn]}")(ranks, found)

    def end_surveys(self) -> None:
        if self._unpacking is not None:
            self._unpacking.remove_files()

    def _survey_unpack(self, ranks: Ranks) -> dict[Path, Path]:
        assert self._unpacking is not None
        return self._unpacking.survey(ranks)

    def _settle_unpack(self, ranks: Ranks, results: Sequence[dict[Path, Path]]) -> None:
        assert self._unpacking is not None
        self._temporary_files = self._unpacking.settle(ranks, results)

    def check_texts(self, found: Sequence[Mapping[int, Mapping[str, int]]], ranks: Ranks) -> None:
        """Raises ReaderError if a column of text holds numbers. `found`: the result of `_survey_texts` of each rank."""

    def read(self, part: str, field: str, start: int, stop: int) -> np.ndarray:
        rows = ShardArray(self.columns.compute_shape(field, stop - start), self.columns.find_dtype(field, self.missing))
        for first, table in self.iterate_tables(start, stop, self.columns.find_types([field])):
            target = rows[first - start : first - start + len(table)]
            self.columns.fill_rows(
                target, table, field, self._encode_column, self.missing, self.make_place_finder(first)
            )
        return rows

    def describe_place(self, part: str, field: str, row: int, index: tuple[int, ...]) -> str:
        return self.columns.name_value(self.find_place(row), *self.columns.find_value(field, index))

    def _encode_column(self, number: int, column: Any) -> np.ndarray:
        """The final codes of a column of texts; NaN or missing= for a missing text."""
        codes = pc.index_in(column, value_set=pa.array(self._values[number], pa.string()))
        if codes.null_count and self.missing not in ("error", "nan"):
            codes = codes.cast(pa.float64()).fill_null(float(self.missing))
        return codes.to_numpy()

    def _read_all_fields(self, start: int, stop: int) -> Rows:
        """The rows `start` to `stop` of every field, with temporary codes of texts."""
        rows = Rows(self.columns, self.missing)
        for first, table in self.iterate_tables(start, stop, self.columns.find_types(self.columns.columns)):
            remaining = (stop - first - len(table)) / max(1, len(table))
            rows.append_table(table, remaining, self.make_place_finder(first))
        rows.finish_rows()
        return rows

    def _survey_texts(self, ranks: Ranks) -> dict[int, dict[str, int]]:
        """For each column of text, the number of this rank's rows with each value."""
        if self._rows is not None:
            return self._rows.values
        values: dict[int, Counter[str]] = {number: Counter() for number in self.columns.texts}
        for _, table in self.iterate_tables(*self._find_counted_rows(ranks), self.columns.find_text_types()):
            for number, totals in values.items():
                counts = table[str(number)].combine_chunks().drop_null().value_counts()
                totals.update(
                    dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))
                )
                if len(totals) > MOST_CATEGORIES:
                    raise make_category_error(self.columns, number)
        return dict(values)

    def _find_counted_rows(self, ranks: Ranks) -> tuple[int, int]:
        """The rows (start, stop) whose texts this rank counts in the survey "texts"."""
        if self.kept is None:  # a survey has kept no rows: count any equal parts
            return self.list_parts(ranks)[ranks.rank]
        start = sum(self.kept.counts[: ranks.rank])
        return start, start + self.kept.counts[ranks.rank]

    def _settle_texts(self, ranks: Ranks, results: Sequence[Mapping[int, Mapping[str, int]]]) -> None:
        self._values = {
            number: sorted({text for rank_counts in results for text in rank_counts[number]})
            for number in self.columns.texts
        }
        self.check_texts(results, ranks)
        self.columns.check_categories(self._values)
        self.categories = {self.columns.names[number]: values for number, values in self._values.items()}
        if self._rows is not None:
            self._rows.settle_categories(self._values)

    def _find_room(self, ranks: Ranks) -> int:
        """The maximum bytes of rows that this rank keeps: by default its share of half of its host's free memory."""
        if self._memory is not None:
            return self._memory
        local_ranks = sum(host == ranks.hosts[ranks.rank] for host in ranks.hosts)
        return memory.measure_free() // 2 // local_ranks
