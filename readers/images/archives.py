"""Extracts files from a tar archive, plain or gzipped."""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from matex_tf.readers.base import agreement, files
from matex_tf.readers.base.formats import ReaderError
from matex_tf.readers.base.unpacking import DAMAGED_GZIP, GZIP, PIECE_BYTES, Watched, create_temporary, remove_files


def extract_members(
    archive: Path, names: Mapping[str, str], convert: Callable[[Any, tarfile.TarInfo, BinaryIO], None]
) -> dict[Any, Path]:
    """Extract the members with one of `names`, in any folder of the archive. Returns temporary files.

    Args:
        names: for each name, the key of its file in the result. Of members with the same key the first is extracted.
        convert: `convert(content, member, target)` writes a temporary file, `target`, from a member.
    """
    found: dict[Any, Path] = {}
    is_packed = files.read_head(archive, 2) == GZIP
    try:
        with gzip.open(archive) if is_packed else open(archive, "rb") as source:
            # mode "r|": the stream does not support seeking.
            with tarfile.open(fileobj=Watched(source), mode="r|") as tar:  # type: ignore[call-overload]
                for member in tar:
                    key = names.get(os.path.basename(member.name))
                    if key is not None and key not in found and member.isreg():
                        with create_temporary() as (path, target):
                            convert(tar.extractfile(member), member, target)
                        found[key] = path
            # Read to the end of the gzip data, where its checksum is.
            while source.read(PIECE_BYTES):
                agreement.stop_if_others_failed()
    except BaseException as error:
        remove_files(found.values())
        if isinstance(error, (tarfile.TarError, *DAMAGED_GZIP)):
            raise ReaderError(
                f"{archive}: truncated or damaged: expected a whole tar archive, found: {error}"
            ) from None
        raise
    return found
