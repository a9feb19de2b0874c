"""Finds the records of TFRecord files; each rank searches its range of bytes.

A record consists of its length (8 bytes), the checksum of the length (4), the data, and their checksum (4). The first
12 bytes are its head. A range may begin within a record, so a rank searches for 12 bytes that look like a head. But
data may also look like a head. So `Index` accepts the ranges of a file only if the records of each range begin where
the records of the preceding range end. Otherwise it searches the complete file again.
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
STRIDE = 64  # the offset of every STRIDE-th record is stored
_CHECKED_HEADS = 1 << 12  # heads whose checksums are computed at once
_FIRST_WINDOW, _MAX_WINDOW = 1 << 14, 1 << 22  # bytes that are searched at once for a first record

Read = Callable[[int, int], bytes]  # the bytes between two offsets


@functools.lru_cache
def _make_table() -> np.ndarray:
    """The table of CRC-32C by byte: uint32, (256,). 0x82F63B78 is the reversed polynomial of CRC-32C."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    return table


def are_heads(heads: np.ndarray) -> np.ndarray:
    """For each row of 12 bytes, whether it is a length with its checksum, masked as TFRecord does; boolean, (rows,)."""
    table = _make_table()
    crc = np.full(len(heads), 0xFFFFFFFF, np.uint32)
    for position in range(8):
        crc = table[(crc ^ heads[:, position]) & 0xFF] ^ (crc >> np.uint32(8))
    crc = ~crc
    masked_checksums = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)
    stored_checksums = np.ascontiguousarray(heads[:, 8:HEAD]).view("<u4")[:, 0]
    return np.asarray(masked_checksums == stored_checksums)


def is_head(head: bytes) -> bool:
    return len(head) >= HEAD and bool(are_heads(np.frombuffer(head[:HEAD], np.uint8)[None])[0])


@dataclass
class Part:
    """The records that begin in the bytes `start` to `stop` of a file. They are right if `first` is truly a record."""

    file: int  # the index of the file
    start: int
    stop: int
    first: int | None = None  # the offset of the first record; None: there is none
    end: int = 0  # the offset after the last complete record; without one, `first`, or else `start`
    count: int = 0
    offsets: list[int] = field(default_factory=list)  # of the first record, and every STRIDE-th one from there
    damage: str = ""  # a description of a damaged record


def find_part(file: int, read: Read, start: int, stop: int, size: int) -> Part:
    """The records in a range of a file of `size` bytes, assuming that the first apparent record is a record."""
    part = Part(file, start, stop, 0 if start == 0 and size else _find_head(read, start, stop, size))
    offset = part.end = start if part.first is None else part.first
    # Heads that are not checked yet, and their offsets.
    heads: list[bytes] = []
    head_offsets: list[int] = []
    while part.first is not None and offset < stop:
        head = read(offset, min(offset + HEAD, size))
        # `offset` and `end`: the offsets of this record and of the next one.
        end = offset + FRAME + int.from_bytes(head[:8], "little")
        if len(head) == HEAD:
            heads.append(head)
            head_offsets.append(offset)
        is_last = end > size or end >= stop  # a truncated record, or the last one of the range
        if len(heads) == _CHECKED_HEADS or is_last:
            agreement.stop_if_others_failed()  # raises an error if another rank has failed
            are_valid = are_heads(np.frombuffer(b"".join(heads), np.uint8).reshape(-1, HEAD))
            if not are_valid.all():
                part.damage = (
                    f"at byte {head_offsets[int(are_valid.argmin())]}: damaged: expected a record, found no length"
                )
                break
            heads, head_offsets = [], []
        if len(head) < HEAD or end > size:
            length = f" of {end - offset} bytes" if len(head) == HEAD else ""
            part.damage = f"at byte {offset}: truncated: expected a record{length}, found {size - offset} bytes"
            break
        if part.count % STRIDE == 0:
            part.offsets.append(offset)
        part.count += 1
        offset = part.end = end
    return part


def _find_head(read: Read, start: int, stop: int, size: int) -> int | None:
    """The first offset in `start` to `stop` of a head whose record ends at another head or at the end of the file."""
    window = _FIRST_WINDOW
    while start < stop:
        end = min(start + window, stop)
        data = np.frombuffer(read(start, min(end + HEAD - 1, size)), np.uint8)
        if len(data) < HEAD:
            return None
        for index in np.flatnonzero(are_heads(np.lib.stride_tricks.sliding_window_view(data, HEAD))).tolist():
            length = int.from_bytes(data[index : index + 8].tobytes(), "little")
            record_end = start + index + FRAME + length
            if record_end == size or (record_end < size and is_head(read(record_end, min(record_end + HEAD, size)))):
                return start + index
        start, window = end, min(2 * window, _MAX_WINDOW)
        agreement.stop_if_others_failed()
    return None


class Index:
    """The records of all files, numbered from 0.

    Args:
        parts: the ranges of all files, in order.
        search_file: searches a complete file, if the ranges of several ranks do not fit together.

    Raises ReaderError for a file that is truncated or damaged.
    """

    def __init__(self, paths: Sequence[Path], parts: Sequence[Part], search_file: Callable[[int], Part]):
        self._paths = paths
        # The numbers of the records with a stored offset, and for each the index of its file and the offset.
        self._numbers: list[int] = []
        self._positions: list[tuple[int, int]] = []
        self.starts: list[int] = []  # the number of the first record of each file
        self.count = 0
        for file_index, path in enumerate(paths):
            file_parts = [part for part in parts if part.file == file_index]
            if not _fit_together(file_parts):
                file_parts = [search_file(file_index)]
                if file_parts[0].damage:
                    raise ReaderError(f"{path}, {file_parts[0].damage}")
            self.starts.append(self.count)
            for part in file_parts:
                self._numbers += [self.count + STRIDE * index for index in range(len(part.offsets))]
                self._positions += [(file_index, offset) for offset in part.offsets]
                self.count += part.count

    def find_near(self, row: int) -> tuple[int, int, int]:
        """(number, file, offset) of a record at or shortly before `row`."""
        index = bisect.bisect_right(self._numbers, row) - 1
        return (self._numbers[index], *self._positions[index])

    def find_file(self, row: int) -> int:
        """The index of the file of a record."""
        return bisect.bisect_right(self.starts, row) - 1

    def find_stop(self, file: int) -> int:
        """The number of the record after the last record of a file."""
        return self.starts[file + 1] if file + 1 < len(self.starts) else self.count

    def find_place(self, row: int) -> str:
        """File and number of a record, for messages."""
        file = self.find_file(row)
        return f"{self._paths[file]}, record {row - self.starts[file]}"


def _fit_together(parts: Sequence[Part]) -> bool:
    """Whether the ranges of a file have no damage, and the records of each begin where the preceding ones end."""
    end = 0  # of the records so far
    for part in parts:
        if part.damage:
            return False
        if part.first is None:
            if end < part.stop:
                return False  # a record begins at `end`, but none was found
        elif part.first != end:
            return False
        else:
            end = part.end
    return True
