"""Finds the records of TFRecord files; each rank searches its range of bytes.

A record consists of its length (8 bytes), the checksum of the length (4), the data, and their checksum (4). The first
12 bytes are its head. A range may begin within a record, so a rank searches for 12 bytes that look like a head. Data
may look so, too: the preceding ranges later prove the first record of a range, or the file is searched again.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from matex_tf.readers.base import agreement
from matex_tf.readers.base.formats import ReaderError

HEAD = 12  # bytes before the data of a record
FRAME = 16  # bytes of a record without its data
# The position of every STRIDE-th record is stored.
STRIDE = 64
_CHECKED = 1 << 12  # heads whose checksums are computed at once
_WINDOW, _MOST = 1 << 14, 1 << 22  # bytes that are searched first for a record, and at most, at once

Read = Callable[[int, int], bytes]  # the bytes between two offsets


@functools.lru_cache
def _make_table() -> np.ndarray:
    """The table of CRC-32C, for one byte at a time."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    return table


def are_heads(heads: np.ndarray) -> np.ndarray:
    """For each row of 12 bytes, whether it is a length with its masked checksum; boolean, (rows,)."""
    table = _make_table()
    crc = np.full(len(heads), 0xFFFFFFFF, np.uint32)
    for place in range(8):
        crc = table[(crc ^ heads[:, place]) & 0xFF] ^ (crc >> np.uint32(8))
    crc = ~crc
    masked = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)
    stored = np.ascontiguousarray(heads[:, 8:HEAD]).view("<u4")[:, 0]
    return np.asarray(masked == stored)


def is_head(head: bytes) -> bool:
    return len(head) >= HEAD and bool(are_heads(np.frombuffer(head[:HEAD], np.uint8)[None])[0])


@dataclass
class Part:
    """The records that begin in the bytes `start` to `stop` of a file.

    first: the offset of the first; None if there is none. end: the offset after the last; `start` or `first` if no
    record is complete. places: the offsets of every STRIDE-th. broken: a description of a damaged record, "" if there
    is none. It is valid only if `first` is proved to be a record.
    """

    file: int
    start: int
    stop: int
    first: int | None = None
    end: int = 0
    count: int = 0
    places: list[int] = field(default_factory=list)
    broken: str = ""


def find_part(file: int, read: Read, start: int, stop: int, size: int) -> Part:
    """The records in a range of a file of `size` bytes, assuming that the first apparent record is a record."""
    part = Part(file, start, stop, 0 if start == 0 and size else _find_head(read, start, stop, size))
    at = part.end = start if part.first is None else part.first
    heads: list[bytes] = []
    begins: list[int] = []
    while part.first is not None and at < stop:
        head = read(at, min(at + HEAD, size))
        # `at` and `end`: the offsets of this record and of the next one.
        end = at + FRAME + int.from_bytes(head[:8], "little")
        if len(head) == HEAD:
            heads.append(head)
            begins.append(at)
        # Enough heads, or the last one: of a truncated record, or at the end of the range.
        if len(heads) == _CHECKED or end > size or end >= stop:
            agreement.stop_if_others_failed()
            right = are_heads(np.frombuffer(b"".join(heads), np.uint8).reshape(-1, HEAD))
            if not right.all():
                part.broken = f"at byte {begins[int(right.argmin())]}: damaged: expected a record, found no length"
                break
            heads, begins = [], []
        if len(head) < HEAD or end > size:
            length = f" of {end - at} bytes" if len(head) == HEAD else ""
            part.broken = f"at byte {at}: truncated: expected a record{length}, found {size - at} bytes"
            break
        if part.count % STRIDE == 0:
            part.places.append(at)
        part.count += 1
        at = part.end = end
    return part


def _find_head(read: Read, start: int, stop: int, size: int) -> int | None:
    """The first offset in `start` to `stop` of an apparent record before another one or the end of the file."""
    window = _WINDOW
    while start < stop:
        end = min(start + window, stop)
        data = np.frombuffer(read(start, min(end + HEAD - 1, size)), np.uint8)
        if len(data) < HEAD:
            return None
        for place in np.flatnonzero(are_heads(np.lib.stride_tricks.sliding_window_view(data, HEAD))).tolist():
            length = int.from_bytes(data[place : place + 8].tobytes(), "little")
            after = start + place + FRAME + length
            if after == size or (after < size and is_head(read(after, min(after + HEAD, size)))):
                return start + place
        start, window = end, min(2 * window, _MOST)
        agreement.stop_if_others_failed()
    return None


class Index:
    """The records of all files, numbered from 0.

    Args:
        parts: the ranges of all files, in order.
        look: searches a complete file, if the ranges of several ranks do not match.

    Raises ReaderError for a file that is truncated or damaged.
    """

    def __init__(self, paths: Sequence[Path], parts: Sequence[Part], look: Callable[[int], Part]):
        self._paths = paths
        self._numbers: list[int] = []
        self._places: list[tuple[int, int]] = []
        self.starts: list[int] = []
        self.count = 0
        for number, path in enumerate(paths):
            of_file = [part for part in parts if part.file == number]
            if not _fit_together(of_file):
                of_file = [look(number)]
                if of_file[0].broken:
                    raise ReaderError(f"{path}, {of_file[0].broken}")
            self.starts.append(self.count)
            for part in of_file:
                self._numbers += [self.count + STRIDE * index for index in range(len(part.places))]
                self._places += [(number, place) for place in part.places]
                self.count += part.count

    def find_near(self, row: int) -> tuple[int, int, int]:
        """(number, file, offset) of a record at or shortly before `row`."""
        index = bisect.bisect_right(self._numbers, row) - 1
        return (self._numbers[index], *self._places[index])

    def find_file(self, row: int) -> int:
        return bisect.bisect_right(self.starts, row) - 1

    def find_stop(self, file: int) -> int:
        """The number of the record after the last record of a file."""
        return self.starts[file + 1] if file + 1 < len(self.starts) else self.count

    def find_place(self, row: int) -> str:
        file = self.find_file(row)
        return f"{self._paths[file]}, record {row - self.starts[file]}"


def _fit_together(parts: Sequence[Part]) -> bool:
    """Whether the first record begins at byte 0, and those of each range where the preceding ones end."""
    at = 0  # the end of the records so far
    for part in parts:
        # Damaged; no record begins in the range although the preceding one ends in it; or the first begins elsewhere.
        if part.broken or (part.first is None and at < part.stop) or (part.first is not None and part.first != at):
            return False
        at = part.end if part.first is not None else at
    return True
