"""Reads an IDX file, as of MNIST, plain or gzipped: its header, and ranges of items.

The format (http://yann.lecun.com/exdb/mnist, "The IDX file format"): two zero bytes, a type code, the number of
dimensions, each dimension as a big-endian uint32, then the values, big-endian, the first dimension slowest.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from matex_tf.readers.base import agreement, files
from matex_tf.readers.base.formats import ReaderError
from matex_tf.readers.base.unchanged import Unchanged
from matex_tf.readers.base.unpacking import DAMAGED_GZIP, GZIP, PIECE_BYTES
from matex_tf.sharding.shard_arrays import ShardArray

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
# The compression ratio of Deflate is at most 1032; a header that claims more is damaged.
_MOST_PACKED = 1032


class IdxFile:
    """An IDX file. The header is checked against the size of the file; `read_items` reads items.

    Attributes: `path`; `shape`, whose first entry is the number of items; `dtype`, in native byte order. Raises
    ReaderError if the file is not an IDX file, has no items, or differs in size from its header.
    """

    def __init__(self, path: Path):
        self.path = path
        self._unchanged = Unchanged([path])  # to detect that the file has changed before a later read
        self._is_packed = files.read_head(path, 2) == GZIP
        try:
            with self._open_file() as file:
                self._read_header(file)
        except DAMAGED_GZIP as error:
            raise ReaderError(
                f"{path}: expected gzip data with an IDX header, found damaged gzip data: {error}"
            ) from None
        self._check_size()

    def _open_file(self) -> BinaryIO:
        return gzip.open(self.path, "rb") if self._is_packed else open(self.path, "rb")  # type: ignore[return-value]

    def _read_header(self, file: BinaryIO) -> None:
        magic = file.read(4)
        if len(magic) < 4:
            raise ReaderError(f"{self.path}: expected an IDX header, found {len(magic)} bytes in all")
        zeros, type_code, dimension_count = magic[:2], magic[2], magic[3]
        if zeros != b"\0\0" or type_code not in TYPES or dimension_count == 0:
            codes = ", ".join(f"{known_code:02x}" for known_code in TYPES)
            expected = f"the bytes 00 00, a type ({codes}) and the number of dimensions, 1 or more"
            raise files.make_magic_error(self.path, expected, magic)
        size_bytes = file.read(4 * dimension_count)
        if len(size_bytes) < 4 * dimension_count:
            raise ReaderError(
                f"{self.path}: truncated: expected {dimension_count} dimensions of 4 bytes after the magic number, "
                f"found {len(size_bytes)} bytes"
            )
        self.shape = struct.unpack(f">{dimension_count}I", size_bytes)
        self._stored_dtype = np.dtype(TYPES[type_code])
        self.dtype = self._stored_dtype.newbyteorder("=")
        self._start = 4 + 4 * dimension_count  # the offset of the first item
        self._item_bytes = math.prod(self.shape[1:]) * self._stored_dtype.itemsize
        if 0 in self.shape:
            raise ReaderError(
                f"{self.path}: zero items: expected at least one, found the dimensions {self._format_dimensions()}"
            )

    def _check_size(self) -> None:
        expected_bytes = self._start + self.shape[0] * self._item_bytes
        file_bytes = os.path.getsize(self.path)
        if self._is_packed:  # the unpacked size is known only after unpacking
            if expected_bytes > file_bytes * _MOST_PACKED:
                raise ReaderError(
                    f"{self.path}: truncated: its header ({self.describe_items()}) makes {expected_bytes} bytes, "
                    f"more than the {file_bytes} bytes of gzip data can hold"
                )
        elif expected_bytes != file_bytes:
            raise ReaderError(
                f"{self.path}: {'truncated' if file_bytes < expected_bytes else 'too long'}: expected {expected_bytes} "
                f"bytes ({self._format_dimensions()} of {self.dtype}), found {file_bytes}"
            )

    def _format_dimensions(self) -> str:
        return " x ".join(map(str, self.shape))

    def describe_items(self) -> str:
        """Dimensions and dtype, as text."""
        return f"{self._format_dimensions()} {self.dtype}"

    def read_items(self, start: int, stop: int) -> ShardArray:
        """Read items `start` to `stop`: shape (stop - start, *shape[1:]), native `dtype`. Allocates no memory for other
        items.

        Reading the last item of a gzipped file also checks its checksum, and that no bytes follow.
        """
        # A ShardArray that owns its memory, not a view of another array, is still recognized after np.asarray.
        array = ShardArray((stop - start, *self.shape[1:]), self._stored_dtype)
        self._unchanged.check(self.path)
        if stop > start:
            try:
                with self._open_file() as file:
                    self._fill_array(file, array, start, stop)
            except DAMAGED_GZIP as error:
                raise ReaderError(
                    f"{self.path}: truncated or damaged: expected gzip data of {self.shape[0]} items, found in "
                    f"items {start} to {stop}: {error}"
                ) from None
        return array if self._stored_dtype.isnative else array.byteswap(inplace=True).view(self.dtype, ShardArray)

    def _fill_array(self, file: BinaryIO, array: np.ndarray, start: int, stop: int) -> None:
        target = memoryview(array.reshape(-1).view(np.uint8))
        if self._is_packed:
            self._skip_bytes(file, self._start + start * self._item_bytes)
        else:
            file.seek(self._start + start * self._item_bytes)
        filled = 0
        while filled < len(target):
            agreement.stop_if_others_failed()  # a long read ends once another rank has failed
            count = file.readinto(target[filled : filled + PIECE_BYTES])  # type: ignore[attr-defined]
            if not count:
                self._raise_truncated(start + filled // self._item_bytes, stop)
            filled += count
        if self._is_packed and stop == self.shape[0] and file.read(1):
            raise ReaderError(f"{self.path}: too long: expected {self.shape[0]} items, found more bytes after them")

    def _skip_bytes(self, file: BinaryIO, count: int) -> None:
        """Unpack and drop `count` bytes, as `seek` would do; but end if another rank has failed."""
        skipped = 0
        while skipped < count:
            agreement.stop_if_others_failed()
            piece = file.read(min(count - skipped, PIECE_BYTES))
            if not piece:
                self._raise_truncated((skipped - self._start) // self._item_bytes, self.shape[0])
            skipped += len(piece)

    def _raise_truncated(self, complete_items: int, stop: int) -> None:
        raise ReaderError(
            f"{self.path}: truncated: expected {self.shape[0]} items, found {max(0, complete_items)} complete ones "
            f"before its end (reading up to item {stop})"
        )
