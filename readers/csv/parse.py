"""Parses a rank's range of a CSV text while the ends of its records are searched, so that the text is read once.

`format.py` calls it in the survey of records. The range is assumed to begin outside of quotes. If the preceding ranges
show otherwise, `format.py` discards these rows and parses the range again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from matex_tf.lazy import pc
from matex_tf.readers.base import agreement
from matex_tf.readers.base.formats import ReaderError
from matex_tf.readers.csv import number_like, records
from matex_tf.readers.csv.joined_text import Text
from matex_tf.readers.csv.marks import Marks
from matex_tf.readers.csv.table import Table
from matex_tf.readers.tables.rows import Rows, TooLarge


def check_texts(
    table: Table,
    found: Sequence[Mapping[int, Mapping[str, int]]],
    rank: int,
    tables: Iterable[Any],
) -> None:
    """Raises ReaderError if the values of a column of text turn out to be numbers.

    The first rank that has `found` such a value reports its line; the other ranks raise FailedElsewhere.

    Args:
        found: for each rank and column, the number of rows with each value.
        tables: (first row, pyarrow table, function from rows to positions) of this rank's records.
    """
    wrong = table.find_number_among_texts(
        {number: number_like.add_counts(texts[number] for texts in found) for number in table.texts}
    )
    if wrong is None:
        return
    number, value = wrong
    if rank != next(other for other, texts in enumerate(found) if value in texts[number]):
        raise agreement.FailedElsewhere
    place = next(
        find_row(row) for _, block, find_row in tables if (row := pc.index(block[str(number)], value).as_py()) >= 0
    )
    name = table.names[number]
    raise ReaderError(
        f"{place}, column {name!r}: expected text, as in the first MiB of the file, found {value!r}, and most rows of "
        f"this column hold numbers; {number_like.suggest_option(value, name, table.dialect)}"
    )


class RangeParser:
    """Parses the records that begin in the bytes `start` to `stop` of a text.

    Attributes: `rows`; `error`, an error of parsing; `is_too_large`, whether the rows exceed the memory limit.
    """

    def __init__(self, text: Text, table: Table, rows: Rows, start: int, stop: int):
        self._text, self._table, self._stop = text, table, stop
        self._marks = table.dialect.marks
        self.rows = rows
        self.error: Exception | None = None
        self.is_too_large = not rows.can_hold_texts()
        begins_line = start in text.starts or text.read_bytes(start - 1, start) == b"\n"
        # The offset of the first record that is not parsed yet; None until the end of the preceding record is found.
        self._at: int | None = start if begins_line else None
        self._unparsed: list[bytes] = []  # the bytes from `_at` on

    @property
    def is_active(self) -> bool:
        return self.error is None and not self.is_too_large

    def add_block(self, begin: int, data: bytes, line_ends: np.ndarray, record_ends: np.ndarray) -> None:
        """Parse the complete lines of the data that was read from offset `begin` on. See `records.search_records`."""
        if not self.is_active or (self._at is None and not len(line_ends)):
            return
        if self._at is None:
            self._at = int(line_ends[0])
            data, begin, line_ends = data[self._at - begin :], self._at, line_ends[1:]
        self._unparsed.append(data)
        if len(line_ends):
            end = int(line_ends[-1])
            whole = b"".join(self._unparsed)
            block, self._unparsed = whole[: end - self._at], [whole[end - self._at :]]
            self._parse_lines(block, len(line_ends), int(np.count_nonzero(record_ends > self._at)))
            self._at = end

    def _parse_lines(self, block: bytes, lines: int, expected: int) -> None:
        """Append the rows of `block`, which has `lines` lines and `expected` records."""
        at = self._at or 0
        try:
            table = self._table.parse_records(
                block, list(self._table.columns), block.count(b"\n") > lines, lambda: self._text.find_line(at)
            )
            if len(table) != expected:
                raise make_count_error(self._text.find_line(at), expected, len(table))
            # The rows that are still to come, as a multiple of these.
            remaining = max(0, self._stop - at - len(block)) / max(1, len(block))
            self.rows.append_table(table, remaining, lambda row: find_line(self._text, self._marks, at, row))
        except TooLarge:
            self.is_too_large = True
        except (ReaderError, ValueError) as error:
            self.error = error

    def finish_range(self) -> None:
        """Parse the last record, which may extend past the end of the range."""
        if self.is_active and self._at is not None and self._at < self._stop:
            last = records.find_line_end(self._text.read_bytes, self._at, self._text.size, self._marks)
            block = self._text.read_bytes(self._at, last)
            self._parse_lines(block, 1, int(bool(self._marks.remove_comments(block).strip(b"\r\n"))))
        self._unparsed = []
        self.rows.finish_rows()


def find_line(text: Text, marks: Marks, at: int, row: int) -> str:
    """ "FILE, line NUMBER" of the record that is `row` records after the offset `at`."""
    return text.find_line(records.skip_records(text.read_bytes, at, text.size, row, marks))


def make_count_error(place: str, expected: int, found: int) -> ReaderError:
    named, _, line = place.rpartition(", line ")
    return ReaderError(
        f"{named}: expected {expected} records from line {line} on, found {found}: a quote within a value, or a "
        "carriage return alone. If quotes are ordinary characters, pass quote=None"
    )
