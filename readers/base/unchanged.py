"""Detects files that changed after a data set was opened."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from matex_tf.readers.base.formats import ReaderError


class Unchanged:
    """Records inode, size and modification time of files, to detect later changes."""

    def __init__(self, paths: Iterable[Path]):
        self._seen = {path: _look_at(path) for path in paths}

    def check(self, path: Path) -> None:
        """Raises ReaderError if `path` has changed."""
        if _look_at(path) != self._seen[path]:
            raise ReaderError(
                f"{path}: the file has changed since this data set was opened: its size, its "
                "modification time or its inode differs. Write a new file instead, or open the data set again"
            )


def _look_at(path: Path) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns
