"""Joins the records of several CSV files, plain or compressed, to one text without headers, with offsets from 0.

So ranks can divide the bytes of all files evenly. A newline is added after each file. Of two files with 100 and 50
bytes of records, offset 101 is the first byte of the second file.
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
from pathlib import Path
from typing import Any, NamedTuple

from matex_tf.readers.base import files
from matex_tf.readers.base.formats import ReaderError
from matex_tf.readers.base.stored import Stored
from matex_tf.readers.base.unpacking import DAMAGED_GZIP, GZIP
from matex_tf.readers.csv.dialect import Dialect

BOM = b"\xef\xbb\xbf"
_PACKED = {GZIP: "gzip", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip"}
_SEARCH_BYTES = 1 << 16  # bytes that are searched for a newline at a time
_COUNT_BYTES = 1 << 20  # bytes whose newlines are counted at a time
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
                openers: dict[str | None, Any] = {"gzip": gzip.open, "bz2": bz2.open, "xz": lzma.open, None: open}
                file = stack.enter_context(openers[packing](path, "rb"))
            yield _Recoded(file, dialect.encoding) if dialect.is_recoded_whole else file
    except UnicodeDecodeError as error:
        raise ReaderError(
            f"{path}: expected text in {dialect.encoding.upper()}, found the byte {error.object[error.start]:02x}. "
            "Pass another encoding="
        ) from None
    except (*_DAMAGED, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the system; the errors of damaged data have no number
        raise ReaderError(f"{path}: truncated or damaged: expected {packing} data, found: {error}") from None


def _open_zipped(path: Path, archive: zipfile.ZipFile) -> Any:
    """Open the only file in an archive. Raises ReaderError if there are others."""
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    if len(entries) != 1:
        names = files.format_names(entry.filename for entry in entries)
        raise ReaderError(f"{path}: expected one file in the archive, found {len(entries)}: {names}; unpack it")
    if entries[0].flag_bits & 1:
        raise ReaderError(
            f"{path}: expected a file without a password, found {entries[0].filename} with one; unpack it"
        )
    return archive.open(entries[0])


class _Recoded:
    """A file in another encoding, read as UTF-8."""

    def __init__(self, file: Any, encoding: str):
        self._file, self._decoder = file, codecs.getincrementaldecoder(encoding)()

    def read(self, count: int) -> bytes:
        while True:
            data = self._file.read(count)
            text = self._decoder.decode(data, final=not data)
            # A few bytes may be only the beginning of a character: the text is empty, but the file has not ended.
            if text or not data:
                return text.encode()


def read_head(path: Path, length: int, dialect: Dialect) -> bytes:
    """The first `length` bytes of the text of a file, or all bytes if it has fewer."""
    with open_text(path, dialect) as file:
        return files.read_all(file, length)[:length]


class TextFile(NamedTuple):
    """One file of a text. `start` is the offset of its first record, after decompression."""

    path: Path
    start: int


class Text:
    """The concatenated bytes of several files, with offsets from 0.

    A newline is added after each file, so that its last record ends with one.

    `unpacked`: the temporary files with decompressed text, by their compressed file. They may be removed afterwards.

    Attributes: `size`, in bytes; `starts` and `ends`, the first offset of each file, and the offset after the newline
    that is added after it.
    """

    def __init__(self, text_files: Sequence[TextFile], unpacked: Mapping[Path, Path]):
        self._files = text_files
        self._stored = [
            Stored(unpacked[path], str(path)) if path in unpacked else Stored(path) for path, _ in text_files
        ]
        self._sizes = [stored.size for stored in self._stored]
        self.ends = list(itertools.accumulate(size - file.start + 1 for size, file in zip(self._sizes, text_files)))
        self.starts = [0, *self.ends[:-1]]
        self.size = self.ends[-1]

    def read_bytes(self, start: int, stop: int) -> bytes:
        """The bytes `start` to `stop` of the text."""
        pieces = []
        start = max(0, start)
        while start < stop:
            file_index = bisect.bisect_right(self.ends, start)
            end = min(stop, self.ends[file_index])
            # From an offset of the text to one of the file.
            shift = self._files[file_index].start - self.starts[file_index]
            first, last = start + shift, min(end + shift, self._sizes[file_index])
            data = self._stored[file_index].read_bytes(first, last - first)
            pieces.append(data if end < self.ends[file_index] else data + b"\n")
            start = end
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def split_by_file(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Split `start` to `stop` into ranges of one file each."""
        for end in self.ends[bisect.bisect_right(self.ends, start) :]:
            if start < stop:
                yield start, min(stop, end)
            start = end

    def find_file(self, byte: int) -> Path:
        """The file that contains the byte at offset `byte`."""
        return self._files[min(bisect.bisect_right(self.ends, byte), len(self.ends) - 1)].path

    def find_line_start(self, byte: int) -> int:
        """The first offset at or after `byte` at which a line begins."""
        if byte in (0, self.size) or byte in self.starts:
            return byte
        search_start = byte - 1
        while search_start < self.size:
            newline_index = self.read_bytes(search_start, min(search_start + _SEARCH_BYTES, self.size)).find(b"\n")
            if newline_index >= 0:
                return search_start + newline_index + 1
            search_start += _SEARCH_BYTES
        return self.size

    def find_line(self, byte: int) -> str:
        """The place "FILE, line NUMBER" of the line that begins at offset `byte`; lines count from 1."""
        file_index = min(bisect.bisect_right(self.ends, byte), len(self.ends) - 1)
        # The offset in the file.
        end = min(byte - self.starts[file_index] + self._files[file_index].start, self._sizes[file_index])
        count = sum(
            self._stored[file_index].read_bytes(offset, min(_COUNT_BYTES, end - offset)).count(b"\n")
            for offset in range(0, end, _COUNT_BYTES)
        )
        return f"{self._files[file_index].path}, line {1 + count}"
