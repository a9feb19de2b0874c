"""Extracts files from a tar archive, plain or gzipped."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
from collections.abc import Collection
from pathlib import Path

from matex_tf.readers.base import agreement, files
from matex_tf.readers.base.formats import ReaderError
from matex_tf.readers.base.unpacking import DAMAGED_GZIP, GZIP, PIECE_BYTES, Watched, create_temporary, remove_files

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
