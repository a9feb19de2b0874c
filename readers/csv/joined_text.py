"""The text of CSV files, plain or gzipped, as one: what follows the header of each, one after the other."""

from __future__ import annotations

import bisect
import contextlib
import gzip
import itertools
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from matex_tf.readers.base import agreement
from matex_tf.readers.base.formats import ReaderError
from matex_tf.runtime import real_files

BOM = b"\xef\xbb\xbf"
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)


def is_packed(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"


def read_head(path: Path, length: int) -> bytes:
    """The first bytes of the text of a file."""
    try:
        with gzip.open(path) if is_packed(path) else open(path, "rb") as file:
            return file.read(length)
    except _DAMAGED as error:
        raise _make_gzip_error(path, error) from None


def unpack_file(path: Path) -> Path:
    """The text of a gzipped file, in a temporary file that all ranks of this host see."""
    with real_files.use_real_files():
        target, name = tempfile.mkstemp(prefix="matex_tf-", suffix=".csv")
    try:
        with os.fdopen(target, "wb") as file, gzip.open(path) as source:
            shutil.copyfileobj(_Watched(source), file, 1 << 20)
    except BaseException as error:
        remove_file(Path(name))
        if isinstance(error, _DAMAGED):
            raise _make_gzip_error(path, error) from None
        raise
    return Path(name)


def remove_file(path: Path) -> None:
    """Remove a file that `unpack_file` made, if it is still there."""
    with real_files.use_real_files():
        path.unlink(missing_ok=True)


def _make_gzip_error(path: Path, error: Exception) -> ReaderError:
    return ReaderError(f"{path}: truncated or damaged: expected gzip data, found: {error}")


class _Watched:
    """A file whose reading ends where another rank has failed."""

    def __init__(self, file: gzip.GzipFile):
        self._file = file

    def read(self, count: int = -1) -> bytes:
        agreement.stop_if_others_failed()
        return self._file.read(count)


@dataclass(frozen=True)
class Piece:
    """One file of a text: its name for people, where its text lies, and the bytes before its first record."""

    named: Path
    path: Path
    start: int

    @property
    def is_unpacked(self) -> bool:
        return self.path != self.named


class Text:
    """The bytes of several files, numbered through from 0. Files that were unpacked stay open and may be removed.

    Each file is followed by a newline of ours, so that its last record ends with one.

    Attributes: `size`; `starts` and `ends`, the first byte of each file and the byte after its last.
    """

    def __init__(self, pieces: Sequence[Piece]):
        self._pieces = pieces
        self._open = {number: _open_piece(piece) for number, piece in enumerate(pieces) if piece.is_unpacked}
        self._sizes = [
            (os.fstat(self._open[number].fileno()) if piece.is_unpacked else os.stat(piece.path)).st_size
            for number, piece in enumerate(pieces)
        ]
        self._last: tuple[int, BinaryIO] | None = None
        self.ends = list(itertools.accumulate(size - piece.start + 1 for size, piece in zip(self._sizes, pieces)))
        self.starts = [0, *self.ends[:-1]]
        self.size = self.ends[-1]

    def read_bytes(self, start: int, stop: int) -> bytes:
        found = []
        start = max(0, start)
        while start < stop:
            number = bisect.bisect_right(self.ends, start)
            end = min(stop, self.ends[number])
            inside = self._pieces[number].start - self.starts[number]
            data = self._read_piece(number, start + inside, min(end + inside, self._sizes[number]))
            found.append(data if end < self.ends[number] else data + b"\n")
            start = end
        return found[0] if len(found) == 1 else b"".join(found)

    def _read_piece(self, number: int, start: int, stop: int) -> bytes:
        """Bytes of one file."""
        found = []
        while start < stop:
            data = os.pread(self._open_file(number).fileno(), stop - start, start)
            if not data:
                raise ReaderError(
                    f"{self._pieces[number].named}: truncated: expected {self._sizes[number]} bytes, found {start}"
                )
            found.append(data)
            start += len(data)
        return found[0] if len(found) == 1 else b"".join(found)

    def _open_file(self, number: int) -> BinaryIO:
        if number in self._open:
            return self._open[number]
        # One at a time, because there may be more than a process may have open.
        if self._last is None or self._last[0] != number:
            if self._last is not None:
                self._last[1].close()
            self._last = (number, _open_piece(self._pieces[number]))
        return self._last[1]

    def split_by_file(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """`start` to `stop` in parts of one file each."""
        for end in self.ends[bisect.bisect_right(self.ends, start) :]:
            if start < stop:
                yield start, min(stop, end)
            start = end

    def find_file(self, byte: int) -> Path:
        """The file in which a byte lies."""
        return self._pieces[min(bisect.bisect_right(self.ends, byte), len(self.ends) - 1)].named

    def find_line(self, byte: int) -> str:
        """The file and the line, from 1, that begins at a byte."""
        number = min(bisect.bisect_right(self.ends, byte), len(self.ends) - 1)
        last = byte - self.starts[number] + self._pieces[number].start
        steps = range(0, min(last, self._sizes[number]), 1 << 20)
        count = sum(
            self._read_piece(number, at, min(at + (1 << 20), last, self._sizes[number])).count(b"\n") for at in steps
        )
        return f"{self._pieces[number].named}, line {1 + count}"


def _open_piece(piece: Piece) -> BinaryIO:
    with real_files.use_real_files() if piece.is_unpacked else contextlib.nullcontext():
        return open(piece.path, "rb", buffering=0)
