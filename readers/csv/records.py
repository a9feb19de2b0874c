"""Where the records of a text of comma-separated values end, found in any part of it.

A newline ends one unless it is within quotes; a part is searched as if it began within them, and as if it did not.
Where there are comments, parts begin where lines do: a line may be within quotes at its begin, but in no comment.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from matex_tf.readers.csv.marks import Marks

_NEWLINE, _RETURN = 10, 13
# Every so many records the place of one is kept.
STRIDE = 1024
# How many bytes are looked through at a time.
PIECE = 1 << 20


Each = Callable[[int, bytes, np.ndarray, np.ndarray], None]


@dataclass
class Found:
    """The records that end in one part of the text, under one supposition.

    count: how many; places: the byte after every STRIDE-th; newlines: whether some stand within quotes; last: the byte
    after the last one; within: whether the part ends within quotes.
    """

    count: int = 0
    places: list[int] = field(default_factory=list)
    newlines: bool = False
    last: int | None = None
    within: bool = False


@dataclass
class Part:
    """What one rank found in its part: `outside` if that begins outside of quotes, `inside` if within."""

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
    """The records that end between the bytes `start` and `stop`; `read(a, b)` gives those from a to b.

    Lines with nothing in them, or only a comment, are no records. `each(begin, data, ends, real)` is given each piece
    that was read, and the bytes after the lines, and after the records, that end in it, supposing that the part begins
    outside of quotes.
    """
    outside, inside = Found(), Found(within=True)
    stride, piece = stride or STRIDE, piece or PIECE
    # A line that begins before this part is taken to have something in it unless it is seen to be empty.
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
    """The next bytes to look through; whole lines where there are comments."""
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
    """The `newlines` that stand outside of quotes, and those of them that end lines with nothing but a comment.

    Args:
        before_each: how many `quotes` come before each newline, those in comments among them.
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
    """Where the line that goes on at `start` begins, or a byte that is far enough before it."""
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
    """Count the records that end at `newlines` of a piece, but not at those in `void`; `line`: where the line begins.

    Returns where the next line begins, and the bytes after the records.
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
    # Of the records found here, those whose number (the count that ends with them) is a multiple of the stride.
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
    """The byte after the first `count` records from `start`; `stop` where there are no more."""
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
    """The byte after the first line that ends outside of quotes from `start`, be it empty; `stop` if there is none."""
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
    """Where the records of a whole text are.

    count: how many; newlines: whether some have newlines within quotes; open: the end of a file at which a quote is
    not closed; numbers and places: a table of records and the bytes where they begin; stop: the end of the text;
    cut: the parts that begin within quotes.
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
    """The records of the text from `start` to `stop`, from its parts in order; `rest` reads what follows the last.

    `ends`: where the files of which the text is made end; parts end there, too, and so do records.
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
    # The last record may end without a newline; empty lines may follow it.
    count += bool(within or rest(last, stop).strip(b"\r\n"))
    return Records(count, newlines, opened, numbers, places, stop, cut)
