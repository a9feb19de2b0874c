"""Extracts files from a tar archive, plain or gzipped; `Stored` reads these and plain files in the same way."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

from matex_tf.readers.base import agreement, files
from matex_tf.readers.base.formats import ReaderError
from matex_tf.readers.base.unchanged import Unchanged
from matex_tf.readers.base.unpacking import DAMAGED_GZIP, GZIP, PIECE_BYTES, Watched, create_temporary, remove_files
from matex_tf.runtime import real_files

# No data set of a single archive has a larger file; a larger member is an error.
_MAX_MEMBER_BYTES = 4 << 30


def unpack_files(archive: Path, names: Collection[str]) -> dict[str, Path]:
    """Extract the members with one of `names`, in any folder of the archive. Returns a temporary file for each name."""
    extracted_files: dict[str, Path] = {}
    is_packed = files.read_head(archive, 2) == GZIP
    try:
        with gzip.open(archive) if is_packed else open(archive, "rb") as archive_file:
            # mode "r|": the stream does not support seeking. `Watched` stops reading if another rank has failed.
            with tarfile.open(fileobj=Watched(archive_file), mode="r|") as tar:  # type: ignore[call-overload]
                for member in tar:
                    name = os.path.basename(member.name)
                    if name in names and name not in extracted_files and member.isreg():
                        extracted_files[name] = _extract_member(archive, tar, member)
            # Read to the end of the gzip data, where its checksum is.
            while archive_file.read(PIECE_BYTES):
                agreement.stop_if_others_failed()
    except BaseException as error:
        remove_files(extracted_files.values())
        if isinstance(error, (tarfile.TarError, *DAMAGED_GZIP)):
            raise ReaderError(
                f"{archive}: truncated or damaged: expected a whole tar archive, found: {error}"
            ) from None
        raise
    return extracted_files


def _extract_member(archive: Path, tar: tarfile.TarFile, member: tarfile.TarInfo) -> Path:
    if member.size > _MAX_MEMBER_BYTES:
        raise ReaderError(
            f"{archive}: {member.name}: expected at most {_MAX_MEMBER_BYTES} bytes in a file, found {member.size}"
        )
    with create_temporary() as (path, target_file):
        member_file = tar.extractfile(member)
        if member_file is not None:
            shutil.copyfileobj(member_file, target_file, PIECE_BYTES)
        if target_file.tell() != member.size:
            raise EOFError(f"{member.name}: {target_file.tell()} bytes instead of {member.size}")
    return path


class Stored:
    """A file on disk, or an extracted file, which stays open and may be removed. `str` returns its name for messages.

    `named`: "ARCHIVE: NAME" for a file that was extracted to `path`; None for a file on disk.
    """

    def __init__(self, path: Path, named: str | None = None):
        self.path, self._named = path, named
        self.name = path.name if named is None else named.rpartition(" ")[2]
        self._handle: BinaryIO | None = None
        self._unchanged = Unchanged([path] if named is None else [])
        if named is not None:
            with real_files.use_real_files():
                self._handle = open(path, "rb")  # noqa: SIM115  (as long as the data set)

    def __str__(self) -> str:
        return self._named or str(self.path)

    def open_file(self) -> BinaryIO:
        """Open the file at its beginning."""
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
