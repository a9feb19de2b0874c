"""Decompresses files: one rank of each host writes a temporary file, which all ranks of the host open.

Otherwise each rank would have to decompress the whole file to read its rows.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

from matex_tf.readers.base import agreement
from matex_tf.readers.base.formats import Ranks
from matex_tf.runtime import real_files

GZIP = b"\x1f\x8b"
"""The first bytes of gzip data."""
DAMAGED_GZIP = (EOFError, zlib.error, gzip.BadGzipFile)
"""Exceptions of damaged gzip and zlib data."""
PIECE_BYTES = 1 << 20
"""Number of bytes to read between two checks whether another rank has failed."""


class Unpacking:
    """Decompresses the files `paths`, which are distributed over the ranks of each host.

    A format calls `survey` and `settle` in its methods of these names (see `Format`), and `remove_files` afterwards.

    Args:
        open_packed: returns a context manager with the decompressed bytes of a file, as a file object.
        suffix: suffix of the names of temporary files.
    """

    def __init__(
        self, paths: Sequence[Path], open_packed: Callable[[Path], AbstractContextManager[Any]], suffix: str
    ) -> None:
        self._paths, self._open_packed, self._suffix = paths, open_packed, suffix
        self._own_files: list[Path] = []  # the temporary files of this rank

    def survey(self, ranks: Ranks) -> dict[Path, Path]:
        """Decompress this rank's files: with n ranks on its host, each n-th file. Returns their temporary files."""
        local_ranks = [rank for rank, host in enumerate(ranks.hosts) if host == ranks.hosts[ranks.rank]]
        temporary_files = {}
        for index, path in enumerate(self._paths):
            if local_ranks[index % len(local_ranks)] == ranks.rank:
                temporary_files[path] = self._unpack_file(path)
                self._own_files.append(temporary_files[path])
                weakref.finalize(self, remove_files, [temporary_files[path]])  # if opening fails
        return temporary_files

    def settle(self, ranks: Ranks, found: Sequence[dict[Path, Path]]) -> dict[Path, Path]:
        """The temporary file of each file on this host, from the results of all ranks."""
        host_results = [files for files, host in zip(found, ranks.hosts) if host == ranks.hosts[ranks.rank]]
        return {path: temporary for files in host_results for path, temporary in files.items()}

    def remove_files(self) -> None:
        """Remove this rank's temporary files. Called when every rank of this host has them open."""
        remove_files(self._own_files)

    def _unpack_file(self, path: Path) -> Path:
        with create_temporary(self._suffix) as (name, file), self._open_packed(path) as source:
            shutil.copyfileobj(Watched(source), file, PIECE_BYTES)
        return name


@contextlib.contextmanager
def create_temporary(suffix: str = "") -> Iterator[tuple[Path, BinaryIO]]:
    """A new temporary file: its path, and the open file. It is removed if the context ends with an exception."""
    with real_files.use_real_files():
        handle, name = tempfile.mkstemp(prefix="matex_tf-", suffix=suffix)
    try:
        with os.fdopen(handle, "wb") as file:
            yield Path(name), file
    except BaseException:
        remove_files([Path(name)])
        raise


def remove_files(paths: Iterable[Path]) -> None:
    """Remove the temporary files that still exist."""
    with real_files.use_real_files():
        for path in paths:
            path.unlink(missing_ok=True)


class Watched:
    """A file object that stops reading if another rank has failed."""

    def __init__(self, file: Any):
        self._file = file

    def read(self, count: int = -1) -> bytes:
        agreement.stop_if_others_failed()
        data: bytes = self._file.read(count)
        return data
