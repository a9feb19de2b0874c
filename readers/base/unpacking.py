"""Decompression: one rank of each host decompresses a file to a temporary file that all ranks of the host open.

Otherwise each rank would have to decompress the whole file to read its rows.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
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
"""Between pieces of this size, a rank looks whether another rank has failed."""


Unpack = Callable[[], dict[Any, Path]]
"""Writes temporary files, and returns them by a key that is the same on all ranks."""


def share_unpacked(
    tasks: Sequence[Unpack], ranks: Ranks
) -> Generator[Any, Sequence[dict[Any, Path]], dict[Any, BinaryIO]]:
    """A part of a survey (see `Format.survey`): the ranks of a host share `tasks`, and all open the resulting files.

    Returns the open files by their keys. Their names are removed when every rank of this host has opened them.
    """
    if not tasks:
        return {}
    host = ranks.hosts[ranks.rank]
    local_ranks = [rank for rank in range(ranks.size) if ranks.hosts[rank] == host]
    mine: dict[Any, Path] = {}
    try:
        for task in tasks[local_ranks.index(ranks.rank) :: len(local_ranks)]:
            mine |= task()
        found = yield mine
        opened: dict[Any, BinaryIO] = {}
        with real_files.use_real_files():
            for rank in local_ranks:
                opened |= {key: open(path, "rb") for key, path in found[rank].items()}  # noqa: SIM115
        yield None
    finally:
        remove_files(mine.values())
    return opened


def unpack_file(path: Path, open_packed: Callable[[Path], AbstractContextManager[Any]], suffix: str) -> dict[Any, Path]:
    """Write the bytes of `open_packed(path)`, a file object, to a temporary file. Returns the file by `path`."""
    with create_temporary(suffix) as (name, file), open_packed(path) as source:
        shutil.copyfileobj(Watched(source), file, PIECE_BYTES)
    return {path: name}


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
