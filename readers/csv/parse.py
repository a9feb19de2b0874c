"""Parses a rank's range of a CSV text while the ends of its records are searched, so that the text is read once.

`format.py` calls this module in the survey of records. The range is assumed to begin outside of quotes. If the
preceding ranges show otherwise, `format.py` drops the rows and reads this rank's rows again.
"""

from __future__ import annotations

import functools

import numpy as np

from matex_tf.readers.base.formats import ReaderError
from matex_tf.readers.csv import errors, records
from matex_tf.readers.csv.joined_text import Text
from matex_tf.readers.csv.table import Table
from matex_tf.readers.tables.rows import Rows, TooLarge


class RangeParser:
    """Parses the records that begin in the bytes `start` to `stop` of a text.

    `records.search_records` reads the range in blocks, and calls `add_block` for each. A block may begin and end within
    a record. So complete lines are parsed at once, and the bytes after them wait for the next block. Then
    `finish_range` parses the last record.

    Attributes: `rows`, the parsed rows; `error`, an error of parsing; `cannot_keep`, whether rows exceed the memory
    limit, or their dtypes cannot hold texts. After an error, or with `cannot_keep`, nothing more is parsed.
    """

    def __init__(self, text: Text, table: Table, rows: Rows, start: int, stop: int):
        self._text, self._table, self._stop = text, table, stop
        self._marks = table.dialect.marks  # the characters that enclose values and begin comments
        self.rows = rows
        self.error: Exception | None = None
        self.cannot_keep = not rows.can_hold_texts()
        # A line begins at the start of a file, or after a newline.
        begins_line = start in text.starts or text.read_bytes(start - 1, start) == b"\n"
        # The offset of the first record that is not parsed yet; None until the end of the preceding record is found.
        self._offset: int | None = start if begins_line else None
        self._unparsed: list[bytes] = []  # the bytes from `_offset` on

    @property
    def is_active(self) -> bool:
        """Whether all records so far have been parsed."""
        return self.error is None and not self.cannot_keep

    def add_block(self, begin: int, data: bytes, line_ends: np.ndarray, record_ends: np.ndarray) -> None:
        """Parse the complete lines of the data that was read from offset `begin` on. See `records.search_records`."""
        if not self.is_active or (self._offset is None and not len(line_ends)):
            return
        if self._offset is None:
            # The range begins within a record, which ends with the first line. The rank before parses this record.
            self._offset = int(line_ends[0])
            data, line_ends = data[self._offset - begin :], line_ends[1:]
        self._unparsed.append(data)
        if not len(line_ends):
            return
        last_end = int(line_ends[-1])
        unparsed = b"".join(self._unparsed)
        lines, rest = unparsed[: last_end - self._offset], unparsed[last_end - self._offset :]
        record_count = int(np.count_nonzero(record_ends > self._offset))
        self._parse_lines(self._offset, lines, len(line_ends), record_count)
        self._offset, self._unparsed = last_end, [rest]

    def _parse_lines(self, offset: int, lines: bytes, line_count: int, record_count: int) -> None:
        """Append the rows of `lines`, which begin at `offset`. Sets `error` or `cannot_keep` if that fails.

        Args:
            line_count: the number of lines that end outside of quotes.
            record_count: the number of these lines that are records, neither empty nor a comment.
        """
        find_line = functools.partial(self._text.find_line, offset)
        has_quoted_newlines = lines.count(b"\n") > line_count
        try:
            types = self._table.find_types(self._table.columns)
            table = self._table.parse_records(lines, types, has_quoted_newlines, find_line)
            if len(table) != record_count:
                raise errors.make_count_error(find_line(), record_count, len(table))
            # About how many rows of the range are still to come, as a multiple of the rows of `lines`.
            remaining = max(0, self._stop - offset - len(lines)) / max(1, len(lines))
            self.rows.append_table(table, remaining, functools.partial(self._find_record, offset))
        except TooLarge:
            self.cannot_keep = True
        except (ReaderError, ValueError) as error:
            self.error = error

    def _find_record(self, offset: int, number: int) -> str:
        """The place "FILE, line NUMBER" of the record that follows `number` records from `offset` on."""
        text = self._text
        return text.find_line(records.skip_records(text.read_bytes, offset, text.size, number, self._marks))

    def finish_range(self) -> None:
        """Parse the last record, which may extend past the end of the range."""
        if self.is_active and self._offset is not None and self._offset < self._stop:
            text = self._text
            last_end = records.find_line_end(text.read_bytes, self._offset, text.size, self._marks)
            line = text.read_bytes(self._offset, last_end)
            has_record = bool(self._marks.remove_comments(line).strip(b"\r\n"))
            self._parse_lines(self._offset, line, line_count=1, record_count=int(has_record))
        self._unparsed = []
        self.rows.finish_rows()
