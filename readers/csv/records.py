"""Finds the ends of records in ranges of a CSV text. Each rank searches one range; `join_parts` combines the results.

A newline ends a record if it is outside of quotes. A rank cannot know whether its range begins within quotes: the first
quote in it may open a value or close one. So it searches under both assumptions; later the preceding ranges show which
one is true. A range that begins within a comment would need a third assumption. So if the text has comments, ranges
begin at lines: a line may begin within quotes, but not within a comment.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from matex_tf.readers.csv.marks import Marks

_NEWLINE, _RETURN = 10, 13
STRIDE = 1024
"""The offset of every STRIDE-th record is stored; a search from the nearest one finds any other record."""
PIECE = 1 << 20
"""Number of bytes that are searched at a time."""
_WINDOW_BYTES = 1 << 16
"""Number of bytes that are read first to find few records; each further read takes four times as many."""

Read = Callable[[int, int], bytes]  # the bytes between two offsets
OnBlock = Callable[[int, bytes, np.ndarray, np.ndarray], None]  # see `search_records`


@dataclass
class Found:
    """The records that end in one range of the text, under one assumption about its beginning."""

    count: int = 0
    offsets: list[int] = field(default_factory=list)  # the offset after every STRIDE-th record
    has_quoted_newlines: bool = False
    last_end: int | None = None  # the offset after the last record; None: no record ends in the range
    within: bool = False  # whether the range ends within quotes; during the search: whether the next block begins so


@dataclass
class Part:
    """The result of one range: `outside` holds if it begins outside of quotes, `inside` if it begins within quotes."""

    outside: Found
    inside: Found
    start: int
    stop: int


def search_records(
    read: Read,
    start: int,
    stop: int,
    marks: Marks,
    stride: int | None = None,
    piece: int | None = None,
    on_block: OnBlock | None = None,
) -> Part:
    """Find the records that end between the offsets `start` and `stop`.

    Empty lines and lines with only a comment are not records. The text is read in blocks. `on_block(begin, data,
    line_ends, record_ends)` is called for each block, `data` from offset `begin` on: `line_ends` and `record_ends` are
    the offsets after its lines and after its records, if the range begins outside of quotes.

    `stride`, `piece`: in place of `STRIDE` and `PIECE`, for a search of few records.
    """
    line_start = _find_line_start(read(max(0, start - 2), start), start)
    outside, inside = (_Search(read, marks, stride or STRIDE, within, line_start) for within in (False, True))
    begin = start
    while begin < stop:
        data = _read_block(read, begin, stop, piece or PIECE, marks)
        block = _Block(begin, data, marks)
        line_ends, record_ends = outside.add_block(block)
        inside.add_block(block)
        if on_block is not None:
            on_block(begin, data, line_ends, record_ends)
        begin += len(data)
    return Part(outside.found, inside.found, start, stop)


def _find_line_start(bytes_before: bytes, start: int) -> int:
    """The start of the line that contains the offset `start`, from the two bytes before it (fewer at the beginning).

    The caller only needs to know whether the line is empty: "" or a carriage return. A line with other bytes before
    `start` is not empty. Its true start is not needed; the result is `start` - 2, so that it is longer than one byte.
    """
    if not bytes_before or bytes_before.endswith(b"\n"):
        return start
    if bytes_before == b"\r" or bytes_before == b"\n\r":
        return start - 1
    return start - 2


def _read_block(read: Read, begin: int, stop: int, length: int, marks: Marks) -> bytes:
    """The next block to search, about `length` bytes; complete lines if the text has comments (see the module)."""
    end = min(begin + length, stop)
    data = read(begin, end)
    if marks.comment is None:
        return data
    while end < stop and b"\n" not in data:
        end = min(2 * end - begin, stop)  # twice the length
        data = read(begin, end)
    return data if end == stop else data[: data.rfind(b"\n") + 1]


class _Block:
    """A block of the text, from offset `begin` on, and the indices of newlines and quotes in it."""

    def __init__(self, begin: int, data: bytes, marks: Marks):
        self.begin, self.data = begin, data
        self.values = np.frombuffer(data, np.uint8)
        self.newlines = np.flatnonzero(self.values == _NEWLINE)
        has_quotes = marks.quote is not None and marks.quote in data
        self.quotes = np.flatnonzero(self.values == marks.quote) if has_quotes else np.empty(0, np.int64)

    @functools.cached_property
    def quotes_before(self) -> np.ndarray:
        """The number of quotes before each newline."""
        return np.searchsorted(self.quotes, self.newlines)


class _Search:
    """Finds the records of a range, block by block, under one assumption: whether the range begins within quotes.

    Args:
        within: the assumption: the range begins within quotes.
        line_start: the offset at which the line at the beginning of the range begins.
    """

    def __init__(self, read: Read, marks: Marks, stride: int, within: bool, line_start: int):
        self.found = Found(within=within)
        self._read, self._marks, self._stride = read, marks, stride
        self._line_start = line_start  # of the line that has not ended in the blocks so far

    def add_block(self, block: _Block) -> tuple[np.ndarray, np.ndarray]:
        """Search the next block. Returns the offsets after the lines and after the records that end in it."""
        found_records = self.found
        newlines, comment_ends = self._find_line_ends(block)
        found_records.has_quoted_newlines |= len(newlines) < len(block.newlines)
        # For each line that ends here, the offset of its newline and its start; then the start of the unfinished line.
        ends = newlines + block.begin
        starts = np.concatenate([[self._line_start], ends + 1])
        self._line_start = int(starts[-1])
        record_ends = ends + 1
        # Only a line of up to one byte can be empty: "" or a carriage return.
        short_lines = np.flatnonzero(ends - starts[:-1] <= 1)
        if len(short_lines) or comment_ends:
            is_record = ~np.isin(newlines, comment_ends)
            is_record[short_lines] &= ~self._are_empty(block, starts[short_lines], ends[short_lines])
            record_ends = record_ends[is_record]
        # Store the records whose number, counted from 1, is a multiple of the stride.
        first_stored = self._stride - found_records.count % self._stride - 1
        found_records.offsets += record_ends[first_stored :: self._stride].tolist()
        found_records.count += len(record_ends)
        if len(record_ends):
            found_records.last_end = int(record_ends[-1])
        return ends + 1, record_ends

    def _find_line_ends(self, block: _Block) -> tuple[np.ndarray, list[int]]:
        """The indices of newlines outside of quotes, and the indices of newlines after lines with only a comment.

        Changes `found_records.within` to say whether the block ends within quotes.
        """
        found_records, quotes = self.found, block.quotes
        comments = self._marks.find_comments(block.data, found_records.within)
        if not len(quotes):
            newlines = block.newlines[:0] if found_records.within else block.newlines
        else:
            quotes_before = block.quotes_before
            if comments:
                # Quotes in comments do not count. `latest_comments`: the index of the last comment that begins before
                # each quote; -1: there is none.
                starts, ends = np.array(comments).T  # the indices of a comment's first byte, and after its last one
                latest_comments = np.searchsorted(starts, quotes, side="right") - 1
                quotes = quotes[(latest_comments < 0) | (quotes >= ends[latest_comments])]
                quotes_before = np.searchsorted(quotes, block.newlines)
            # An index is outside of quotes if the number of quotes before it is even.
            newlines = block.newlines[((quotes_before + found_records.within) & 1) == 0]
            found_records.within ^= bool(len(quotes) & 1)
        return newlines, [end for start, end in comments if self._marks.fills_line(block.data, start)]

    def _are_empty(self, block: _Block, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Whether lines of up to one byte, from offsets `starts` to `ends`, are empty, or only a carriage return."""
        first_bytes = block.values[np.maximum(starts - block.begin, 0)]
        # Only the first line may begin in an earlier block.
        if len(starts) and starts[0] < block.begin:
            first_bytes[0] = self._read(int(starts[0]), int(starts[0]) + 1)[0]
        return np.asarray((starts == ends) | (first_bytes == _RETURN))


def skip_records(read: Read, start: int, stop: int, count: int, marks: Marks) -> int:
    """The offset after the first `count` records from `start`; `stop` if there are fewer."""
    window = _WINDOW_BYTES
    while count:
        end = min(stop, start + window)
        offsets = search_records(read, start, end, marks, stride=1, piece=window).outside.offsets
        if len(offsets) >= count:
            return offsets[count - 1]
        if end == stop:
            return stop
        window *= 4
    return start


def find_line_end(read: Read, start: int, stop: int, marks: Marks) -> int:
    """The offset after the first line from `start` that ends outside of quotes, even if empty; else `stop`."""
    offsets: list[int] = []
    window = _WINDOW_BYTES
    while True:
        end = min(stop, start + window)
        search_records(
            read, start, end, marks, piece=window, on_block=lambda begin, data, ends, records: offsets.extend(ends[:1])
        )
        if offsets or end == stop:
            return int(offsets[0]) if offsets else stop
        window *= 4


@dataclass
class Records:
    """The positions of the records of a complete text.

    The lists `numbers` and `offsets` describe some records: the first one, and each that follows a stored offset.
    """

    count: int
    has_quoted_newlines: bool
    unclosed_end: int | None  # the end of the first file with an unclosed quote; None: all quotes are closed
    numbers: list[int]  # the indices of these records, ascending
    offsets: list[int]  # where these records begin, or empty lines before them
    stop: int  # the end of the text
    has_range_within_quotes: bool = field(default=False, compare=False)  # whether a range begins within quotes

    def find_near(self, record: int) -> tuple[int, int]:
        """(index, first byte) of a record at or shortly before the record with index `record`."""
        position = bisect.bisect_right(self.numbers, record) - 1
        return self.numbers[position], self.offsets[position]


def join_parts(parts: Sequence[Part], start: int, stop: int, read_rest: Read, ends: Collection[int] = ()) -> Records:
    """Combine the results of consecutive ranges of the text from `start` to `stop`.

    The end of a range shows whether the next one begins within quotes, and so which result of its `Part` is right.

    Args:
        read_rest: reads the bytes after the last newline that ends a record, without comments.
        ends: the ends of the files. A range ends at each of them; a file that ends within quotes has an unclosed quote.
    """
    ends = {*ends, stop}
    records = Records(0, has_quoted_newlines=False, unclosed_end=None, numbers=[0], offsets=[start], stop=stop)
    # Whether the range begins within quotes; the offset after the last record.
    is_within_quotes, last_end = False, start
    for part in parts:
        records.has_range_within_quotes |= is_within_quotes
        part_result = part.inside if is_within_quotes else part.outside
        records.numbers += [records.count + STRIDE * (index + 1) for index in range(len(part_result.offsets))]
        records.offsets += part_result.offsets
        records.count += part_result.count
        records.has_quoted_newlines |= part_result.has_quoted_newlines
        last_end = part_result.last_end or last_end
        is_within_quotes = part_result.within
        if is_within_quotes and part.stop in ends and records.unclosed_end is None:
            records.unclosed_end = part.stop
    # The last record may lack a newline; empty lines may follow it.
    records.count += bool(is_within_quotes or read_rest(last_end, stop).strip(b"\r\n"))
    return records
