"""Reads bytes of several files that stay open only as long as they are read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from matex_tf.readers.base import files
from matex_tf.readers.base.formats import ReaderError
from matex_tf.readers.base.unchanged import Unchanged


class StoredFiles:
    """The bytes of several files, which are numbered from 0.

    Args:
        keys: each file's path, or its key in `unpacked`.
        unpacked: open temporary files by their keys (see `unpacking.py`), which may be removed. Of the other files one
            is open at a time, because their number may exceed the limit of open files.
        names: the names of the files in messages; default: the keys.

    Attributes: `sizes`, the bytes of each file.
    """

    def __init__(self, keys: Sequence[Any], unpacked: Mapping[Any, BinaryIO], names: Sequence[Any] | None = None):
        self._keys, self._names = keys, keys if names is None else names
        self._unpacked = {number: unpacked[key] for number, key in enumerate(keys) if key in unpacked}
        plain = {Path(key) for key in keys if key not in unpacked}
        self._unchanged = Unchanged(plain)
        self._last_opened: tuple[int, BinaryIO] | None = None
        self.sizes = [
            os.fstat(unpacked[key].fileno()).st_size if key in unpacked else os.stat(key).st_size for key in keys
        ]

    def read_bytes(self, number: int, start: int, stop: int) -> bytes:
        """The bytes `start` to `stop` of a file. Raises ReaderError if the file has changed or ends earlier."""
        if number not in self._unpacked:
            self._unchanged.check(Path(self._keys[number]))
        data = files.read_at(self._open_file(number).fileno(), start, stop - start)
        if start + len(data) < stop:
            raise ReaderError(
                f"{self._names[number]}: truncated: expected {self.sizes[number]} bytes, found {start + len(data)}"
            )
        return data

    def _open_file(self, number: int) -> BinaryIO:
        if number in self._unpacked:
            return self._unpacked[number]
        if self._last_opened is None or self._last_opened[0] != number:
            if self._last_opened is not None:
                self._last_opened[1].close()
            self._last_opened = (number, open(self._keys[number], "rb"))  # noqa: SIM115  (until another one is read)
        return self._last_opened[1]
