"""Finds the ends of records in ranges of a CSV text. Each rank searches one range; `join_parts` combines the results.

A newline ends a record if it is outside of quotes. A rank cannot know whether its range begins within quotes, so it
searches under both assumptions; later the preceding ranges show which one is true. With comments, ranges begin at
lines: a line may begin within quotes, but not within a comment.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from matex_tf.readers.csv.marks import Marks

_NEWLINE, _RETURN = 10, 13
# The position of every STRIDE-th record is stored.
STRIDE = 1024
# Number of bytes that are searched at a time.
PIECE = 1 << 20


OnBlock = Callable[[int, bytes, np.ndarray, np.ndarray], None]


@dataclass
class Found:
    """The records that end in one range of the text, under one assumption about its beginning."""

    count: int = 0
    places: list[int] = field(default_factory=list)  # the offset after every STRIDE-th record
    newlines: bool = False  # whether quoted values contain newlines
    last: int | None = None  # the offset after the last record
    within: bool = False  # whether the range ends within quotes; during the search: whether the next block begins there


@dataclass
class Part:
    """The result of one rank's range: `outside` if it begins outside of quotes, `inside` if it begins within quotes."""

    outside: Found
    inside: Found
    start: int
    stop: int


def search_records(
    read: Callable[[int, int], bytes],
    start: int,
    stop: int,
    marks: Marks,
    stride: int | None = None,
    piece: int | None = None,
    on_block: OnBlock | None = None,
) -> Part:
    """The records that end between the offsets `start` and `stop`; `read(a, b)` returns the bytes from a to b.

    Empty lines and lines with only a comment are not records. `on_block(begin, data, line_ends, record_ends)` is called
    for each block that is read, from offset `begin` on: the offsets after its lines and after its records, assuming
    that the range begins outside of quotes.
    """
    outside, inside = Found(), Found(within=True)
    stride, piece = stride or STRIDE, piece or PIECE
    # A line that begins before this range counts as not empty, unless it is known to be empty.
    before = read(max(0, start - 2), start)
    # The start of the current line, under each assumption.
    line_starts = [_find_line_start(before, start)] * 2
    begin = start
    while begin < stop:
        data = _read_piece(read, begin, stop, piece, marks)
        values = np.frombuffer(data, np.uint8)
        newlines = np.flatnonzero(values == _NEWLINE)
        quotes = np.flatnonzero(values == marks.quote) if marks.quote is not None and marks.quote in data else None
        quotes_before = None if quotes is None else np.searchsorted(quotes, newlines)
        for assumption, found in enumerate((outside, inside)):
            unquoted, comment_ends = _split_newlines(data, newlines, quotes, quotes_before, found, marks)
            found.newlines |= len(unquoted) < len(newlines)
            line = line_starts[assumption]
            line, record_ends = _add_piece(found, values, begin, unquoted, comment_ends, line, read, stride)
            line_starts[assumption] = line
            if on_block is not None and found is outside:
                on_block(begin, data, unquoted + (begin + 1), record_ends)
        begin += len(data)
    return Part(outside, inside, start, stop)


def _read_piece(read: Callable[[int, int], bytes], begin: int, stop: int, piece: int, marks: Marks) -> bytes:
    """The next block of bytes to search; complete lines if there are comments."""
    end = min(begin + piece, stop)
    data = read(begin, end)
    if marks.comment is None:
        return data
    while end < stop and b"\n" not in data:
        end = min(2 * end - begin, stop)
        data = read(begin, end)
    return data if end == stop else data[: data.rfind(b"\n") + 1]


def _split_newlines(
    data: bytes,
    newlines: np.ndarray,
    quotes: np.ndarray | None,
    quotes_before: np.ndarray | None,
    found: Found,
    marks: Marks,
) -> tuple[np.ndarray, list[int]]:
    """Returns the `newlines` outside of quotes, and the offsets after comments that fill their line. Updates
    `found.within`.

    Args:
        quotes_before: the number of `quotes` before each newline, including quotes in comments.
    """
    comments = marks.find_comments(data, found.within)
    if quotes is not None and comments:
        first, after = np.array(comments).T
        place = np.searchsorted(first, quotes, side="right") - 1
        quotes = quotes[(place < 0) | (quotes >= after[place])]
        quotes_before = np.searchsorted(quotes, newlines)
    if quotes is None or quotes_before is None:
        unquoted = newlines[:0] if found.within else newlines
    else:
        # A position is outside of quotes if the number of quotes before it is even.
        unquoted = newlines[((quotes_before + found.within) & 1) == 0]
        found.within ^= bool(len(quotes) & 1)
    return unquoted, [after for first, after in comments if marks.is_bare(data, first)]


def _find_line_start(before: bytes, start: int) -> int:
    """The start of the line that contains `start`, or any offset at least two bytes before `start`."""
    if not before or before.endswith(b"\n"):
        return start
    if before == b"\r" or before == b"\n\r":
        return start - 1
    return start - 2


def _add_piece(
    found: Found,
    values: np.ndarray,
    begin: int,
    newlines: np.ndarray,
    comment_ends: Sequence[int],
    line: int,
    read: Callable[..., Any],
    stride: int,
) -> tuple[int, np.ndarray]:
    """Count the records that end at `newlines` of a block. Empty lines, and comments that end at `comment_ends`, are no
    records. `line`: the start of the first line.

    Returns the start of the next line, and the offsets after the records.
    """
    if not len(newlines):
        return line, newlines
    ends = newlines + begin
    starts = np.concatenate([[line], ends[:-1] + 1])
    lengths = ends - starts
    short = np.flatnonzero(lengths <= 1)
    if len(short) or comment_ends:
        empty = np.array([_is_empty(values, begin, int(starts[i]), int(ends[i]), read) for i in short], bool)
        ends = np.delete(
            ends, np.union1d(short[empty], np.flatnonzero(np.isin(newlines, comment_ends))).astype(np.int64)
        )
    # Select the records whose number, counted from 1, is a multiple of the stride.
    first = stride - found.count % stride - 1
    found.places += (ends[first::stride] + 1).tolist()
    found.count += len(ends)
    if len(ends):
        found.last = int(ends[-1]) + 1
    return int(newlines[-1]) + begin + 1, ends + 1


def _is_empty(values: np.ndarray, begin: int, start: int, end: int, read: Callable[..., Any]) -> bool:
    if start == end:
        return True
    byte = values[start - begin] if start >= begin else read(start, start + 1)[0]
    return bool(byte == _RETURN)


def skip_records(read: Callable[[int, int], bytes], start: int, stop: int, count: int, marks: Marks) -> int:
    """The offset after the first `count` records from `start`; `stop` if there are fewer."""
    window = 1 << 16
    while count:
        end = min(stop, start + window)
        places = search_records(read, start, end, marks, stride=1, piece=window).outside.places
        if len(places) >= count:
            return places[count - 1]
        if end == stop:
            return stop
        window *= 4
    return start


def find_line_end(read: Callable[[int, int], bytes], start: int, stop: int, marks: Marks) -> int:
    """The offset after the first line from `start` that ends outside of quotes, even if empty; else `stop`."""
    found: list[int] = []
    window = 1 << 16
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
    open: int | None  # the end of a file with an unclosed quote
    numbers: list[int]  # the indices of some records
    places: list[int]  # the offsets at which these records begin
    stop: int  # the end of the text
    cut: list[int] = field(default_factory=list, compare=False)  # the indices of ranges that begin within quotes

    def find_near(self, record: int) -> tuple[int, int]:
        """(number, first byte) of a record at or shortly before `record`."""
        index = bisect.bisect_right(self.numbers, record) - 1
        return self.numbers[index], self.places[index]


def join_parts(
    parts: Sequence[Part], start: int, stop: int, rest: Callable[[int, int], bytes], ends: Collection[int] = ()
) -> Records:
    """Combine the results of consecutive ranges of the text from `start` to `stop`; `rest` reads the end of the text.

    `ends`: the ends of the files. Ranges and records end there, too.
    """
    ends = {*ends, stop}
    count, within, newlines = 0, False, False
    numbers, places = [0], [start]
    last, opened, cut = start, None, []
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
