"""The text of several CSV files, plain or compressed, as one text without headers, with offsets from 0.

So ranks divide the bytes of all files evenly. Of two files with 100 and 50 bytes of records, offset 101 is the first
byte of the second: a newline is added after each file.
"""

from __future__ import annotations

import bisect
import bz2
import codecs
import contextlib
import gzip
import itertools
import lzma
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from matex_tf.readers.base import files
from matex_tf.readers.base.formats import ReaderError, split_range
from matex_tf.readers.base.stored import StoredFiles
from matex_tf.readers.base.unpacking import DAMAGED_GZIP, GZIP
from matex_tf.readers.csv.dialect import Dialect
from matex_tf.readers.csv.errors import Line

BOM = b"\xef\xbb\xbf"
_PACKED = {GZIP: "gzip", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip"}
_DAMAGED = (*DAMAGED_GZIP, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError)


def needs_unpacking(path: Path, dialect: Dialect) -> bool:
    """Returns whether a file must be decompressed or recoded before its bytes can be split into ranges."""
    return _find_packing(path) is not None or dialect.is_recoded_whole


def _find_packing(path: Path) -> str | None:
    head = files.read_head(path)
    return next((name for magic, name in _PACKED.items() if head.startswith(magic)), None)


@contextlib.contextmanager
def open_text(path: Path, dialect: Dialect) -> Iterator[Any]:
    """Open the decompressed text of a file at its beginning. Raises ReaderError if the file is damaged."""
    packing = _find_packing(path)
    try:
        with contextlib.ExitStack() as stack:
            if packing == "zip":
                file: Any = stack.enter_context(_open_zipped(path, stack.enter_context(zipfile.ZipFile(path))))
            else:
                opening: dict[str | None, Any] = {"gzip": gzip.open, "bz2": bz2.open, "xz": lzma.open, None: open}
                file = stack.enter_context(opening[packing](path, "rb"))
            yield _Recoded(file, dialect.encoding) if dialect.is_recoded_whole else file
    except UnicodeDecodeError as error:
        raise ReaderError(
            f"{path}: expected text in {dialect.encoding.upper()}, found the byte {error.object[error.start]:02x}. "
            "Pass another encoding="
        ) from None
    except (*_DAMAGED, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ReaderError(f"{path}: truncated or damaged: expected {packing} data, found: {error}") from None


def _open_zipped(path: Path, archive: zipfile.ZipFile) -> Any:
    """Open the only file in an archive. Raises ReaderError if there are others."""
    inside = [entry for entry in archive.infolist() if not entry.is_dir()]
    if len(inside) != 1:
        names = files.format_names(entry.filename for entry in inside)
        raise ReaderError(f"{path}: expected one file in the archive, found {len(inside)}: {names}; unpack it")
    if inside[0].flag_bits & 1:
        raise ReaderError(f"{path}: expected a file without a password, found {inside[0].filename} with one; unpack it")
    return archive.open(inside[0])


class _Recoded:
    """A file in another encoding, read as UTF-8."""

    def __init__(self, file: Any, encoding: str):
        self._file, self._decoder = file, codecs.getincrementaldecoder(encoding)()

    def read(self, count: int) -> bytes:
        while True:
            data = self._file.read(count)
            text = self._decoder.decode(data, final=not data)
            if text or not data:
                return text.encode()


def read_head(path: Path, length: int, dialect: Dialect) -> bytes:
    """The first `length` bytes of the text of a file, or all bytes if it has fewer."""
    with open_text(path, dialect) as file:
        return files.read_all(file, length)[:length]


@dataclass(frozen=True)
class TextFile:
    """One file of a text: its path, and the offset of its first record in its decompressed text."""

    path: Path
    start: int


class Text:
    """The concatenated bytes of several files, with offsets from 0.

    A newline is added after each file, so that its last record ends with one. `unpacked`: the decompressed text of
    packed files, by path.

    Attributes: `size`; `starts` and `ends`, the first offset of each file and the offset after its last byte.
    """

    def __init__(self, text_files: Sequence[TextFile], unpacked: Mapping[Path, BinaryIO]):
        self._files = text_files
        self._stored = StoredFiles([file.path for file in text_files], unpacked)
        self._lengths = [size - file.start + 1 for size, file in zip(self._stored.sizes, text_files)]
        self.ends = list(itertools.accumulate(self._lengths))
        self.starts = [0, *self.ends[:-1]]
        self.size = self.ends[-1]

    def read_bytes(self, start: int, stop: int) -> bytes:
        """The bytes `start` to `stop` of the text."""
        found = []
        for number, first, last in split_range(self._lengths, max(0, start), stop):
            begin, size = self._files[number].start, self._stored.sizes[number]
            data = self._stored.read_bytes(number, begin + first, min(begin + last, size))
            found.append(data if begin + last <= size else data + b"\n")
        return found[0] if len(found) == 1 else b"".join(found)

    def split_by_file(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Split `start` to `stop` into ranges of one file each."""
        for number, first, last in split_range(self._lengths, start, stop):
            yield self.starts[number] + first, self.starts[number] + last

    def find_file(self, byte: int) -> Path:
        """The file that contains the byte at offset `byte`."""
        return self._files[min(bisect.bisect_right(self.ends, byte), len(self.ends) - 1)].path

    def find_line_start(self, byte: int) -> int:
        """The first offset at or after `byte` at which a line begins."""
        if byte in (0, self.size) or byte in self.starts:
            return byte
        at = byte - 1
        while at < self.size:
            found = self.read_bytes(at, min(at + (1 << 16), self.size)).find(b"\n")
            if found >= 0:
                return at + found + 1
            at += 1 << 16
        return self.size

    def find_line(self, byte: int) -> Line:
        """The line that begins at offset `byte`."""
        number = min(bisect.bisect_right(self.ends, byte), len(self.ends) - 1)
        last = min(byte - self.starts[number] + self._files[number].start, self._stored.sizes[number])
        pieces = ((at, min(at + (1 << 20), last)) for at in range(0, last, 1 << 20))
        count = sum(self._stored.read_bytes(number, at, end).count(b"\n") for at, end in pieces)
        return Line(self._files[number].path, 1 + count)
