"""The Parquet format: each rank reads and decodes its own row groups.

A row group, some thousand rows of a file, can be decoded from its beginning only. So the rows that a rank reads when a
data set is opened begin and end with row groups. A later read may end within a row group; a `Cursor` keeps the
position, so that the next read can go on from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf.lazy import pa
from matex_tf.readers.arrays.contents import convert_errors
from matex_tf.readers.base import files
from matex_tf.readers.base.formats import Ranks, ReaderError, register
from matex_tf.readers.base.unchanged import Unchanged
from matex_tf.readers.tables.columns import Column
from matex_tf.readers.typed.format import TypedTable
from matex_tf.runtime import notes

SIGNATURE = b"PAR1"
_BATCH_ROWS, _BATCH_BYTES = 1 << 16, 4 << 20
# A shuffled stream alternates between four row groups, each with data and labels.
_MOST_CURSORS = 8
# A note is printed if a rank reads more than this multiple of its proportion of the rows.
_MOST_SHARES = 1.5
_FIRST_ROW_BUFFER = 1 << 16  # bytes that are read at a time for the first row only


@dataclass(frozen=True)
class Group:
    """A row group: row group `number` of the file `file`, with the rows `start` to `stop` of the complete table."""

    file: int  # index in `Parquet.files`
    number: int
    start: int
    stop: int


@dataclass
class Cursor:
    """The reading position in a row group."""

    batches: Iterator[Any]
    at: int  # the first row of `batch`, in the complete table
    batch: Any = None  # the current batch; None: the next one of `batches`


@register("PARQUET")
class Parquet(TypedTable):
    """One Parquet table: a file, or several files that are concatenated ("part-*.parquet", sorted by name), all with
    the same columns.

    Args:
        labels: the column or columns of labels, by name or by number (-1 is the last).
        columns: the columns of data, in this order; by default all columns except the labels.
        dtype: dtype of the data (default: the stored one), or {column: dtype}; str for a column of text.
        shape: shape of a row of data, such as (28, 28); the values of all columns of data are concatenated.
        memory: most bytes of rows that a rank keeps while it opens the data set. Default: half of the free memory,
            divided by the number of ranks of the host. Above it, rows are read when needed.

    A column of lists becomes as many columns as its lists have values. Text becomes integers, as in CSV.
    """

    def __init__(
        self,
        path: str | PathLike[str] | Sequence[Any],
        labels: Column | Sequence[Column] | None = None,
        columns: Column | Sequence[Column] | None = None,
        dtype: Any = None,
        shape: Any = None,
        memory: int | None = None,
    ):
        super().__init__(path, memory)
        self._unchanged = Unchanged(self.files)
        self._metadata: list[Any] = []
        self._groups: list[Group] = []
        # By row group and columns that are read, the least recently used first.
        self._cursors: dict[tuple[Group, tuple[int, ...]], Cursor] = {}
        first_schema, self._row_count = None, 0
        for file_index, file in enumerate(self.files):
            with convert_errors(file, "Parquet", "opening"):
                parquet_file = self._open_file(file_index)
                schema = parquet_file.schema_arrow
                self._metadata.append(parquet_file.metadata)
                for group_number in range(parquet_file.metadata.num_row_groups):
                    start = self._row_count
                    self._row_count += parquet_file.metadata.row_group(group_number).num_rows
                    if self._row_count > start:
                        self._groups.append(Group(file_index, group_number, start, self._row_count))
            if first_schema is None:
                first_schema = schema
                types = [(field.name, field.type) for field in schema]
                self._choose_columns(file, types, labels, columns, dtype, shape)
            self._check_columns(file, first_schema, schema)

    @classmethod
    def recognises(cls, path: Path, head: bytes) -> bool:
        return head.startswith(SIGNATURE)

    def count(self, part: str) -> int:
        return self._row_count if part == "training" else 0

    def chunk_rows(self, part: str, field: str) -> int:
        return max((group.stop - group.start for group in self._groups), default=1)

    def list_parts(self, ranks: Ranks) -> list[tuple[int, int]]:
        """Ranges end at row groups, because a row group cannot be read from the middle."""
        group_ends = np.array([*(group.start for group in self._groups), self._row_count])
        even_ends = [self._row_count * rank / ranks.size for rank in range(ranks.size + 1)]
        ends = [int(group_ends[np.abs(group_ends - end).argmin()]) for end in even_ends]  # the nearest of a row group
        return [*zip(ends, ends[1:])]

    def _settle_room(self, ranks: Ranks, results: Sequence[bool]) -> None:
        """Also prints a note if the row groups divide the rows unevenly between ranks."""
        super()._settle_room(ranks, results)
        even_share = self._row_count / ranks.size
        most_rows = max(stop - start for start, stop in self.list_parts(ranks))
        # With fewer rows than ranks the rows are uneven in any case.
        if even_share >= 1 and most_rows > _MOST_SHARES * even_share:
            suggested_rows = max(1, int(even_share) // 4)
            notes.print_note(
                f"{self.columns.path}: one rank reads {most_rows} of {self._row_count} rows, because {ranks.size} "
                f"ranks share {len(self._groups)} row group(s). Write it with row_group_size={suggested_rows} to "
                "distribute its rows evenly"
            )

    def find_place(self, row: int) -> str:
        group_index = int(np.searchsorted([group.stop for group in self._groups], row, side="right"))
        group = self._groups[group_index]
        file_start = next(other_group.start for other_group in self._groups if other_group.file == group.file)
        return f"{self.files[group.file]}, row {row - file_start}"

    def read_first(self, numbers: Sequence[int]) -> Any:
        """As in `TypedTable`, but with a buffer: without one, pyarrow reads the whole columns of the row group."""
        group = self._groups[0]
        names = [self.columns.names[number] for number in numbers]
        with convert_errors(self.files[group.file], "Parquet", "reading the first row of"):
            parquet_file = self._open_file(group.file, buffer_size=_FIRST_ROW_BUFFER)
            batches = parquet_file.iter_batches(1, [group.number], names)
        return self._take_batch(group, batches, numbers, group.start)

    def read_batches(self, start: int, stop: int, numbers: Sequence[int]) -> Iterator[tuple[int, Any]]:
        first_index = int(np.searchsorted([group.stop for group in self._groups], start, side="right"))
        for group in self._groups[first_index:]:
            if group.start >= stop:
                break
            self._unchanged.check(self.files[group.file])
            cursor = self._find_cursor(group, max(start, group.start), tuple(numbers))
            while cursor.at < min(stop, group.stop):
                if cursor.batch is None:
                    cursor.batch = self._take_batch(group, cursor.batches, numbers, cursor.at)
                end = cursor.at + len(cursor.batch)
                low, high = max(start, cursor.at), min(stop, end)
                if low < high:
                    yield low, cursor.batch.slice(low - cursor.at, high - low)
                if high < end:
                    break  # the cursor keeps the batch for the next read
                cursor.at, cursor.batch = end, None
            if cursor.at == group.stop:
                self._cursors.pop((group, tuple(numbers)), None)

    def _take_batch(self, group: Group, batches: Iterator[Any], numbers: Sequence[int], first_row: int) -> Any:
        """The next rows of a row group, from row `first_row` on. Raises ReaderError for too few or too many rows."""
        path = self.files[group.file]
        with convert_errors(path, "Parquet", f"reading row group {group.number} of"):
            batch = next(batches, None)
            if batch is None or first_row + len(batch) > group.stop:
                row_count = first_row - group.start + (0 if batch is None else len(batch))
                expected_rows = group.stop - group.start
                raise ReaderError(
                    f"{path}: damaged: expected {expected_rows} rows in row group {group.number}, found {row_count}"
                )
            return self._name_columns(batch, numbers)

    def _find_cursor(self, group: Group, row: int, numbers: tuple[int, ...]) -> Cursor:
        """A cursor that can reach `row` of the group: the previous one, unless it is already past that row."""
        cursor = self._cursors.pop((group, numbers), None)
        if cursor is None or cursor.at > row:
            names = [self.columns.names[number] for number in numbers]
            row_bytes = self._metadata[group.file].row_group(group.number).total_byte_size // (group.stop - group.start)
            batch_rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, row_bytes)))
            with convert_errors(self.files[group.file], "Parquet", f"reading row group {group.number} of"):
                batches = self._open_file(group.file).iter_batches(batch_rows, [group.number], names)
            cursor = Cursor(batches, group.start)
        self._cursors[group, numbers] = cursor  # now the most recently used one
        while len(self._cursors) > _MOST_CURSORS:
            del self._cursors[next(iter(self._cursors))]  # the least recently used one
        return cursor

    def _name_columns(self, batch: Any, numbers: Sequence[int]) -> Any:
        """The columns `numbers` of a batch, named by number. Several columns of a file may have one name."""
        names = self.columns.names
        columns = {}
        for number in numbers:
            same_indices = batch.schema.get_all_field_indices(names[number])
            earlier_count = names[:number].count(names[number])  # the number of columns of this name before this one
            columns[str(number)] = batch.column(same_indices[earlier_count])
        return pa.RecordBatch.from_pydict(columns)

    def _open_file(self, number: int, buffer_size: int = 0) -> Any:
        """Open a file; for the first time, check its signature. Later calls need not read its metadata again."""
        from pyarrow import parquet

        path = self.files[number]
        metadata = self._metadata[number] if number < len(self._metadata) else None
        if metadata is None:
            head = files.read_head(path, len(SIGNATURE))
            if head != SIGNATURE:
                raise files.make_magic_error(path, f"a Parquet file, which begins with {SIGNATURE.hex(' ')}", head)
        return parquet.ParquetFile(path, metadata=metadata, buffer_size=buffer_size, page_checksum_verification=True)

    def _check_columns(self, file: Path, first_schema: Any, schema: Any) -> None:
        """Raises ReaderError if a file, with the schema `schema`, has other columns than the first file."""
        for number in self.columns.used:
            name = self.columns.names[number]
            if number >= len(schema) or schema.field(number).name != name:
                raise ReaderError(
                    f"{file}: expected the columns of {self.files[0]}, {files.format_names(first_schema.names)}; found "
                    f"{files.format_names(schema.names)}"
                )
            if schema.field(number).type != first_schema.field(number).type:
                raise ReaderError(
                    f"{file}: expected {first_schema.field(number).type} in column {name!r}, as in {self.files[0]}; "
                    f"found {schema.field(number).type}"
                )
