"""Packed files, each unpacked by one rank of each host into a temporary file that all ranks of the host see."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from matex_tf.readers.base import agreement
from matex_tf.readers.base.formats import Ranks
from matex_tf.runtime import real_files


class Unpacking:
    """The two halves of a survey in which ranks unpack `paths`; several files by several ranks.

    Args:
        open_packed: gives a context of a packed file, read from its begin.
        suffix: of the names of temporary files.
    """

    def __init__(
        self, paths: Sequence[Path], open_packed: Callable[[Path], AbstractContextManager[Any]], suffix: str
    ) -> None:
        self._paths, self._open_packed, self._suffix = paths, open_packed, suffix
        self._mine: list[Path] = []

    def survey(self, ranks: Ranks) -> dict[Path, Path]:
        """Where this rank has unpacked its part of the files."""
        here = [rank for rank, host in enumerate(ranks.hosts) if host == ranks.hosts[ranks.rank]]
        found = {}
        for place, path in enumerate(self._paths):
            if here[place % len(here)] == ranks.rank:
                found[path] = self._unpack_file(path)
                self._mine.append(found[path])
                weakref.finalize(self, remove_file, found[path])
        return found

    def settle(self, ranks: Ranks, found: Sequence[dict[Path, Path]]) -> dict[Path, Path]:
        """Where each file is unpacked on this host."""
        here = [part for part, host in zip(found, ranks.hosts) if host == ranks.hosts[ranks.rank]]
        return {path: place for part in here for path, place in part.items()}

    def remove_files(self) -> None:
        """Every rank of this host has them open."""
        for path in self._mine:
            remove_file(path)

    def _unpack_file(self, path: Path) -> Path:
        with real_files.use_real_files():
            target, name = tempfile.mkstemp(prefix="matex_tf-", suffix=self._suffix)
        try:
            with os.fdopen(target, "wb") as file, self._open_packed(path) as source:
                shutil.copyfileobj(_Watched(source), file, 1 << 20)
        except BaseException:
            remove_file(Path(name))
            raise
        return Path(name)


def remove_file(path: Path) -> None:
    """Remove a temporary file, if it is still there."""
    with real_files.use_real_files():
        path.unlink(missing_ok=True)


class _Watched:
    """A file whose reading ends where another rank has failed."""

    def __init__(self, file: Any):
        self._file = file

    def read(self, count: int = -1) -> bytes:
        agreement.stop_if_others_failed()
        data: bytes = self._file.read(count)
        return data
