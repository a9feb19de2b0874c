"""Finds the ends of records in ranges of a CSV text.

A newline ends a record if it is outside of quotes. A range is searched under both assumptions: that it begins within
quotes, and outside. With comments, ranges begin at lines: a line may begin within quotes, but not within a comment.
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


Each = Callable[[int, bytes, np.ndarray, np.ndarray], None]


@dataclass
class Found:
    """The records that end in one range of the text, under one assumption about its beginning.

    count: number of records; places: the offset after every STRIDE-th record; newlines: whether quoted values contain
    newlines; last: the offset after the last record; within: whether the range ends within quotes.
    """

    count: int = 0
    places: list[int] = field(default_factory=list)
    newlines: bool = False
    last: int | None = None
    within: bool = False


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
    each: Each | None = None,
) -> Part:
    """The records that end between the offsets `start` and `stop`; `read(a, b)` returns the bytes from a to b.

    Empty lines and lines with only a comment are not records. `each(begin, data, ends, real)` is called for each block
    that is read: `ends` and `real` are the offsets after its lines and after its records, assuming that the range
    begins outside of quotes.
    """
    outside, inside = Found(), Found(within=True)
    stride, piece = stride or STRIDE, piece or PIECE
    # A line that begins before this range counts as not empty, unless it is known to be empty.
    before = read(max(0, start - 2), start)
    ends = {0: _find_line_start(before, start), 1: _find_line_start(before, start)}
    begin = start
    while begin < stop:
        data = _read_piece(read, begin, stop, piece, marks)
        values = np.frombuffer(data, np.uint8)
        newlines = np.flatnonzero(values == _NEWLINE)
        quotes = np.flatnonzero(values == marks.quote) if marks.quote is not None and marks.quote in data else None
        before_each = None if quotes is None else np.searchsorted(quotes, newlines)
        for supposed, found in ((0, outside), (1, inside)):
            mine, void = _split_newlines(data, newlines, quotes, before_each, found, marks)
            found.newlines |= len(mine) < len(newlines)
            ends[supposed], real = _add_piece(found, values, begin, mine, void, ends[supposed], read, stride)
            if each is not None and not supposed:
                each(begin, data, mine + (begin + 1), real)
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
    before_each: np.ndarray | None,
    found: Found,
    marks: Marks,
) -> tuple[np.ndarray, list[int]]:
    """Returns the `newlines` outside of quotes, and the offsets after comments that fill their line.

    Args:
        before_each: the number of `quotes` before each newline, including quotes in comments.
    """
    comments = marks.find_comments(data, found.within)
    if quotes is not None and comments:
        first, after = np.array(comments).T
        place = np.searchsorted(first, quotes, side="right") - 1
        quotes = quotes[(place < 0) | (quotes >= after[place])]
        before_each = np.searchsorted(quotes, newlines)
    if quotes is None or before_each is None:
        free = newlines[:0] if found.within else newlines
    else:
        free = newlines[((before_each + found.within) & 1) == 0]
        found.within ^= bool(len(quotes) & 1)
    return free, [after for first, after in comments if marks.is_bare(data, first)]


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
    void: Sequence[int],
    line: int,
    read: Callable[..., Any],
    stride: int,
) -> tuple[int, np.ndarray]:
    """Count the records that end at `newlines` of a block, except those in `void`. `line`: the start of the first line.

    Returns the start of the next line, and the offsets after the records.
    """
    if not len(newlines):
        return line, newlines
    ends = newlines + begin
    starts = np.concatenate([[line], ends[:-1] + 1])
    lengths = ends - starts
    short = np.flatnonzero(lengths <= 1)
    if len(short) or void:
        empty = np.array([_is_empty(values, begin, int(starts[i]), int(ends[i]), read) for i in short], bool)
        ends = np.delete(ends, np.union1d(short[empty], np.flatnonzero(np.isin(newlines, void))).astype(np.int64))
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
    """The offset after the first line from `start` that ends outside of quotes, even if empty;
    `stop` if there is none.
    """
    found: list[int] = []
    window = 1 << 16
    while True:
        end = min(stop, start + window)
        search_records(
            read, start, end, marks, piece=window, each=lambda begin, data, ends, real: found.extend(ends[:1])
        )
        if found or end == stop:
            return int(found[0]) if found else stop
        window *= 4


@dataclass
class Records:
    """The positions of the records of a complete text.

    count: number of records; newlines: whether quoted values contain newlines; open: the end of a file with an unclosed
    quote, or None; numbers and places: indices of some records and their offsets; stop: the end of the text; cut:
    the indices of ranges that begin within quotes.
    """

    count: int
    newlines: bool
    open: int | None
    numbers: list[int]
    places: list[int]
    stop: int
    cut: list[int] = field(default_factory=list, compare=False)

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
