"""The CSV format: tables of text. Each rank reads and parses a contiguous range of the bytes.

Opening has up to three surveys, in which each rank searches its part of the files (see `Format`): "unpack" decompresses
files, "records" finds the ends of records, parses them and keeps the rows, "texts" collects the values of columns of
text.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from matex_tf import arguments
from matex_tf.lazy import pc
from matex_tf.readers.base import agreement
from matex_tf.readers.base.formats import KeptRows, Ranks, ReaderError, register
from matex_tf.readers.base.unpacking import Unpacking
from matex_tf.readers.csv import errors, headers, joined_text, number_like, records
from matex_tf.readers.csv.dialect import make_dialect
from matex_tf.readers.csv.joined_text import Text, TextFile
from matex_tf.readers.csv.parse import RangeParser
from matex_tf.readers.csv.table import Table
from matex_tf.readers.tables.columns import Column
from matex_tf.readers.tables.format import TableFormat
from matex_tf.readers.tables.rows import Rows
from matex_tf.sharding import slice_bounds

_BLOCK_BYTES = 1 << 20
_ENDINGS = tuple(name + packed for name in (".csv", ".tsv") for packed in ("", ".gz", ".bz2", ".xz", ".zip"))


class _Survey(NamedTuple):
    """The result of a rank's survey "records": the ends of records in its range of bytes, and the rows that it keeps.

    row_count: the number of these rows; None if they cannot be kept. has_failed: whether a record could not be parsed.
    """

    parts: list[records.Part]
    row_count: int | None
    has_failed: bool


@register("CSV")
class Csv(TableFormat):
    """One table of delimited text: a file, plain or compressed by gzip, bz2, xz or zip, or several files that are
    concatenated ("part-*.csv", sorted by name), all with the same header.

    Args:
        labels: the column or columns of labels, by name or by number (-1 is the last).
        columns: the columns of data, in this order; by default all columns except the labels.
        dtype: dtype of the data (default: float64), or {column: dtype}; str for a column of text.
        delimiter: by default the delimiter in the first line: a comma, semicolon, tab or bar.
        header: whether the first line holds the names; otherwise columns are named "0", "1", ...
        quote: character around values that contain delimiters or newlines; None: values are never quoted.
        decimal, thousands: the marks in numbers: decimal=",", thousands="." reads 1.234,56 as 1234.56.
        na_values: further marks of missing values; an empty text, NA, NaN, NULL and the like always are. A number
            matches in any spelling.
        comment: character that begins a comment, which ends with its line. A line with only a comment is not a record.
        skiprows: number of lines before the header of each file.
        encoding: Python's name of the encoding (default: UTF-8).
        memory: most bytes of rows that a rank keeps while it opens the data set. Default: half of the free memory,
            divided by the number of ranks of the host. Above it, opening only counts the records, and they are read
            again when needed.

    The first MiB, or dtype={column: str}, determines whether a column holds numbers or text. Text becomes integers: the
    index of the value among all values of that column in alphabetical order, the same on all ranks
    (`DataSet.categories`). If most rows of a column of text are numbers in an unusual spelling, an error names the
    option that reads them.
    """

    columns: Table

    def __init__(
        self,
        path: str | PathLike[str] | Sequence[Any],
        labels: Column | Sequence[Column] | None = None,
        columns: Column | Sequence[Column] | None = None,
        dtype: Any = None,
        delimiter: str | None = None,
        header: bool = True,
        quote: str | None = '"',
        memory: int | None = None,
        decimal: str = ".",
        thousands: str | None = None,
        na_values: Any = None,
        comment: str | None = None,
        skiprows: int = 0,
        encoding: str = "utf-8",
    ):
        super().__init__(path, memory)
        dialect = make_dialect(delimiter, quote, comment, encoding, decimal, thousands, na_values, skiprows)
        arguments.check_flag("DataSet", "header", header)
        head = joined_text.read_head(self.files[0], headers.HEAD_BYTES, dialect)
        if delimiter is None:
            dialect = dataclasses.replace(dialect, delimiter=headers.sniff_delimiter(self.files[0], head, dialect))
        self._marks = dialect.marks
        self._text_files: list[TextFile] = []
        for file in self.files:
            known_head = head if file is self.files[0] else b""
            names, start = headers.read_names(file, known_head, header, dialect)
            if not self._text_files:
                self.columns = Table(file, names, dialect)
            headers.check_same(file, names, header, self.files[0], self.columns.names)
            self._text_files.append(TextFile(file, start))
        self.columns.choose_columns(labels, columns)
        self.labelled = "labels" in self.columns.columns
        self.columns.learn_types(*headers.sample_records(self._text_files, head, dialect), dtype)
        packed_files = [file for file in dict.fromkeys(self.files) if joined_text.needs_unpacking(file, dialect)]
        self._unpacking: Unpacking = Unpacking(packed_files, lambda file: joined_text.open_text(file, dialect), ".csv")
        self._set_surveys(unpack=bool(packed_files), records=True, texts=bool(self.columns.texts))
        self._parser: RangeParser | None = None  # between the survey of records and its settling

    @classmethod
    def recognises(cls, path: Path, head: bytes) -> bool:
        return path.is_file() and path.name.lower().endswith(_ENDINGS)

    # Records: each rank finds the ends of records in its range of bytes, and parses the blocks that it reads for this.

    def _survey_records(self, ranks: Ranks) -> _Survey:
        self._text = Text(self._text_files, self._temporary_files)
        start, stop = slice_bounds.deal_block(self._text.size, ranks.rank, ranks.size)
        if self._marks.comment is not None:  # a range must not begin within a comment (see `records.py`)
            start, stop = self._text.find_line_start(start), self._text.find_line_start(stop)
        parser = None
        if self.keep:  # rows may be kept: parse what is read in any case
            rows = Rows(self.columns, self.missing, self._find_room(ranks))
            parser = RangeParser(self._text, self.columns, rows, start, stop)
        on_block = parser.add_block if parser else None
        parts = [
            records.search_records(self._read_text, begin, end, self._marks, on_block=on_block)
            for begin, end in self._text.split_by_file(start, stop)
        ]
        if parser is not None:
            parser.finish_range()
        self._parser = parser
        if parser is None or parser.cannot_keep:
            return _Survey(parts, row_count=None, has_failed=False)
        return _Survey(parts, parser.rows.count, has_failed=parser.error is not None)

    def _read_text(self, start: int, stop: int) -> bytes:
        agreement.stop_if_others_failed()
        return self._text.read_bytes(start, stop)

    def _settle_records(self, ranks: Ranks, surveys: Sequence[_Survey]) -> None:
        """Join the ranks' results. The rows of this rank are one of three:

        1. The rows of its survey, if all ranks have kept theirs and these are right.
        2. If a rank's range began within quotes, or the count is wrong: rows that are read again, by their numbers.
        3. None, if a rank could not keep its rows, so that no rank does. They are read when needed.

        Raises ReaderError for an open quote, and an error of parsing.
        """
        text, parts = self._text, [part for survey in surveys for part in survey.parts]
        self._records = records.join_parts(
            parts, 0, text.size, lambda begin, end: self._marks.remove_comments(text.read_bytes(begin, end)), text.ends
        )
        if self._records.unclosed_end is not None:
            file = text.find_file(self._records.unclosed_end - 1)
            raise ReaderError(
                f"{file}: expected every quote to be closed, found one open at the end of the file. "
                "If quotes are ordinary characters, pass quote=None"
            )
        parser, self._parser = self._parser, None
        counts = [survey.row_count for survey in surveys if survey.row_count is not None]
        if parser is None or len(counts) < len(surveys):
            return
        is_count_wrong = sum(counts) != self._records.count and not any(survey.has_failed for survey in surveys)
        if self._records.has_range_within_quotes or is_count_wrong:
            # Now the ends of all records are known. If only the count is wrong, this reading checks the number of
            # records of each block, and an error names the place.
            row_ranges = self.list_parts(ranks)
            counts = [stop - start for start, stop in row_ranges]
            self._rows = self._read_all_fields(*row_ranges[ranks.rank])
        elif parser.error is not None:
            raise parser.error
        else:
            self._rows = parser.rows
        self.kept = KeptRows(counts, self._rows.buffers)

    def check_texts(self, found: Sequence[Mapping[int, Mapping[str, int]]], ranks: Ranks) -> None:
        """Raises ReaderError if a column of text has numbers in most rows.

        Only one rank, the first that has found such a number, reads its rows again for the line of the number, and
        raises the error. The other ranks raise FailedElsewhere, and so report its error (`agreement.py`).
        """
        table = self.columns
        for number in sorted(set(table.texts) - table.requested_texts):
            value = number_like.find_usual_number(number_like.add_counts(rank_counts[number] for rank_counts in found))
            if value is None:
                continue
            first_rank = next(rank for rank, rank_counts in enumerate(found) if value in rank_counts[number])
            if ranks.rank != first_rank:
                raise agreement.FailedElsewhere
            blocks = self.iterate_tables(*self._find_counted_rows(ranks), table.find_text_types())
            row_matches = ((first_row, pc.index(block[str(number)], value).as_py()) for first_row, block in blocks)
            row = next(first_row + index for first_row, index in row_matches if index >= 0)
            name = table.names[number]
            raise ReaderError(
                f"{self.find_place(row)}, column {name!r}: expected text, as in the first MiB of the file, found "
                f"{value!r}, and most rows of this column hold numbers; "
                f"{number_like.suggest_option(value, name, table.dialect)}"
            )

    # Rows.

    def count(self, part: str) -> int:
        return self._records.count if part == "training" else 0

    def chunk_rows(self, part: str, field: str) -> int:
        return records.STRIDE

    def iterate_tables(self, start: int, stop: int, types: dict[int, Any]) -> Iterator[tuple[int, Any]]:
        for first_row, end_row, begin_byte, end_byte in self._iterate_blocks(start, stop):
            data = self._read_text(begin_byte, end_byte)
            find_line = functools.partial(self._text.find_line, begin_byte)
            table = self.columns.parse_records(data, types, self._records.has_quoted_newlines, find_line)
            if len(table) != end_row - first_row:
                raise errors.make_count_error(find_line(), end_row - first_row, len(table))
            yield first_row, table

    def _iterate_blocks(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """Split rows into blocks: (first row, row after last, first byte, byte after last).

        A block ends at a known record, a record with a known offset, as about every `records.STRIDE`-th has. It has up
        to `_BLOCK_BYTES`, or reaches to the next known record if there is none within them.
        """
        numbers, offsets = self._records.numbers, self._records.offsets
        # `row` and `byte`: the beginning of the block. `index`: the next known record, where the block may end.
        row, byte = start, self._find_byte(start)
        index = int(np.searchsorted(numbers, start, side="right"))
        while row < stop:
            while index + 1 < len(numbers) and numbers[index + 1] < stop and offsets[index + 1] - byte <= _BLOCK_BYTES:
                index += 1
            if index < len(numbers) and row < numbers[index] < stop:
                end_row, end_byte = numbers[index], offsets[index]
                index += 1
            else:
                end_row, end_byte = stop, self._find_byte(stop)
            yield row, end_row, byte, end_byte
            row, byte = end_row, end_byte

    def _find_byte(self, row: int) -> int:
        """The offset of the first byte of a row."""
        if row >= self._records.count:
            return self._records.stop
        number, offset = self._records.find_near(row)
        return records.skip_records(self._text.read_bytes, offset, self._records.stop, row - number, self._marks)

    def find_place(self, row: int) -> str:
        return self._text.find_line(self._find_byte(row))
