"""Reads bytes of a file on disk, or of a temporary file with its decompressed contents, in the same way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from matex_tf.readers.base import files
from matex_tf.readers.base.formats import ReaderError
from matex_tf.readers.base.unchanged import Unchanged
from matex_tf.runtime import real_files


class Stored:
    """A file on disk, or a temporary file, which stays open and may be removed. `str` returns its name for messages.

    A file on disk is opened for each read, because the number of files may exceed the limit of open files.

    `source`: the name in messages of the file from which the temporary file `path` was made; None for a file on disk.
    """

    def __init__(self, path: Path, source: str | None = None):
        self.path, self._source = path, source
        self._handle: BinaryIO | None = None
        self._unchanged = Unchanged([path] if source is None else [])
        if source is not None:
            # A temporary file of the readers is not among the private files of this rank, where hooks look for files.
            with real_files.use_real_files():
                self._handle = open(path, "rb")  # noqa: SIM115  (as long as the data set)

    def __str__(self) -> str:
        return self._source or str(self.path)

    def open_file(self) -> BinaryIO:
        """Open the file. The caller chooses the position: that of a temporary file is the same for all callers."""
        if self._handle is None:
            self._unchanged.check(self.path)
            return open(self.path, "rb")
        return os.fdopen(os.dup(self._handle.fileno()), "rb")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self._handle is None else os.fstat(self._handle.fileno()).st_size

    def read_bytes(self, start: int, count: int) -> bytes:
        """Read `count` bytes from offset `start`. Raises ReaderError if the file ends earlier."""
        with self.open_file() as file:
            data = files.read_at(file.fileno(), start, count)
        if len(data) < count:
            raise ReaderError(f"{self}: truncated: expected {start + count} bytes or more, found {start + len(data)}")
        return data
