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
"""The position of every STRIDE-th record is stored."""
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
    places: list[int] = field(default_factory=list)  # the offset after every STRIDE-th record
    newlines: bool = False  # whether quoted values contain newlines
    last: int | None = None  # the offset after the last record; None: no record ends in the range
    within: bool = False  # whether the range ends within quotes; during the search: whether the next block begins so


@dataclass
class Part:
    """The result of one rank's range: `outside` if it begins outside of quotes, `inside` if it begins within quotes."""

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
    """The records that end between the offsets `start` and `stop`.

    Empty lines and lines with only a comment are not records. `on_block(begin, data, line_ends, record_ends)` is called
    for each block that is read, from offset `begin` on: the offsets after its lines and after its records, assuming
    that the range begins outside of quotes.
    """
    line = _find_line_start(read(max(0, start - 2), start), start)
    outside, inside = (_Search(read, marks, stride or STRIDE, within, line) for within in (False, True))
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


def _find_line_start(before: bytes, start: int) -> int:
    """The start of the line that contains the offset `start`, from the two bytes before it (fewer at the beginning).

    The caller only needs to know whether the line is empty: "" or a carriage return. A line with other bytes before
    `start` is not. For such a line the result is `start` - 2, so that it has at least two bytes before its newline.
    """
    if not before or before.endswith(b"\n"):
        return start
    if before == b"\r" or before == b"\n\r":
        return start - 1
    return start - 2


def _read_block(read: Read, begin: int, stop: int, length: int, marks: Marks) -> bytes:
    """The next block to search, about `length` bytes; complete lines if there are comments."""
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
        line: the offset at which the first line begins; the attribute `_line`: at which the unfinished line begins.
    """

    def __init__(self, read: Read, marks: Marks, stride: int, within: bool, line: int):
        self.found = Found(within=within)
        self._read, self._marks, self._stride, self._line = read, marks, stride, line

    def add_block(self, block: _Block) -> tuple[np.ndarray, np.ndarray]:
        """Search the next block. Returns the offsets after the lines and after the records that end in it."""
        found = self.found
        newlines, comment_ends = self._find_line_ends(block)
        found.newlines |= len(newlines) < len(block.newlines)
        # For each line that ends here, the offset of its newline and its start; then the start of the unfinished line.
        ends = newlines + block.begin
        starts = np.concatenate([[self._line], ends + 1])
        self._line = int(starts[-1])
        record_ends = ends + 1
        # Only a line of up to one byte can be empty: "" or a carriage return.
        short = np.flatnonzero(ends - starts[:-1] <= 1)
        if len(short) or comment_ends:
            is_record = ~np.isin(newlines, comment_ends)
            is_record[short] &= ~self._are_empty(block, starts[short], ends[short])
            record_ends = record_ends[is_record]
        # Store the records whose number, counted from 1, is a multiple of the stride.
        first = self._stride - found.count % self._stride - 1
        found.places += record_ends[first :: self._stride].tolist()
        found.count += len(record_ends)
        if len(record_ends):
            found.last = int(record_ends[-1])
        return ends + 1, record_ends

    def _find_line_ends(self, block: _Block) -> tuple[np.ndarray, list[int]]:
        """The indices of newlines outside of quotes, and the indices after comments that fill their line.

        Then `found.within` says whether the block ends within quotes.
        """
        found, quotes = self.found, block.quotes
        comments = self._marks.find_comments(block.data, found.within)
        if not len(quotes):
            newlines = block.newlines[:0] if found.within else block.newlines
        else:
            quotes_before = block.quotes_before
            if comments:
                # Quotes in comments do not count. `number`: the comment that begins last before each quote; -1: none.
                first, after = np.array(comments).T  # the indices of its first byte, and after its last
                number = np.searchsorted(first, quotes, side="right") - 1
                quotes = quotes[(number < 0) | (quotes >= after[number])]
                quotes_before = np.searchsorted(quotes, block.newlines)
            # An index is outside of quotes if the number of quotes before it is even.
            newlines = block.newlines[((quotes_before + found.within) & 1) == 0]
            found.within ^= bool(len(quotes) & 1)
        return newlines, [after for first, after in comments if self._marks.is_bare(block.data, first)]

    def _are_empty(self, block: _Block, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Whether lines of up to one byte, from offsets `starts` to `ends`, are empty, or only a carriage return."""
        first_bytes = block.values[np.maximum(starts - block.begin, 0)]
        if len(starts) and starts[0] < block.begin:
            first_bytes[0] = self._read(int(starts[0]), int(starts[0]) + 1)[0]
        return np.asarray((starts == ends) | (first_bytes == _RETURN))


def skip_records(read: Read, start: int, stop: int, count: int, marks: Marks) -> int:
    """The offset after the first `count` records from `start`; `stop` if there are fewer."""
    window = _WINDOW_BYTES
    while count:
        end = min(stop, start + window)
        places = search_records(read, start, end, marks, stride=1, piece=window).outside.places
        if len(places) >= count:
            return places[count - 1]
        if end == stop:
            return stop
        window *= 4
    return start


def find_line_end(read: Read, start: int, stop: int, marks: Marks) -> int:
    """The offset after the first line from `start` that ends outside of quotes, even if empty; else `stop`."""
    found: list[int] = []
    window = _WINDOW_BYTES
    while True:
        end = min(stop, start + window)
        search_records(
            read, start, end, marks, piece=window, on_block=lambda begin, data, ends, records: found.extend(ends[:1])
        )
        if found or end == stop:
            return int(found[0]) if found else stop
        window *= 4


@dataclass
class Records:
    """The positions of the records of a complete text."""

    count: int
    newlines: bool  # whether quoted values contain newlines
    open: int | None  # the offset at which the first file with an unclosed quote ends; None: all quotes are closed
    numbers: list[int]  # the indices of some records, ascending: the first, and each after a STRIDE-th of a range
    places: list[int]  # the offsets at which these records begin
    stop: int  # the end of the text
    cut: list[int] = field(default_factory=list, compare=False)  # the indices of ranges that begin within quotes

    def find_near(self, record: int) -> tuple[int, int]:
        """(index, first byte) of a record at or shortly before the record with index `record`."""
        index = bisect.bisect_right(self.numbers, record) - 1
        return self.numbers[index], self.places[index]


def join_parts(parts: Sequence[Part], start: int, stop: int, rest: Read, ends: Collection[int] = ()) -> Records:
    """Combine the results of consecutive ranges of the text from `start` to `stop`; `rest` reads the end of the text.

    Whether a range begins within quotes is known from the end of the preceding one, which selects one result of `Part`.

    `ends`: the ends of the files. A range ends at each of them; a file that ends within quotes has an unclosed quote.
    """
    ends = {*ends, stop}
    # Up to the current range: the number of records; whether it begins within quotes; whether quotes contain newlines.
    count, within, newlines = 0, False, False
    numbers, places = [0], [start]
    last, opened, cut = start, None, []  # last: the offset after the last record; the others: see `Records`
    for number, part in enumerate(parts):
        if within:
            cut.append(number)
        found = part.inside if within else part.outside
        numbers += [count + STRIDE * (i + 1) for i in range(len(found.places))]
        places += found.places
        count += found.count
        newlines |= found.newlines
        last = found.last or last
        within = found.within
        if within and part.stop in ends:
            opened = part.stop if opened is None else opened
    # The last record may lack a newline; empty lines may follow it.
    count += bool(within or rest(last, stop).strip(b"\r\n"))
    return Records(count, newlines, opened, numbers, places, stop, cut)
