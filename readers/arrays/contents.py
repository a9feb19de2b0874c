"""Why a file of HDF5 cannot be read: its lock, and the files behind it that are missing, for a person."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Any

from matex_tf.readers.base.formats import ReaderError


def describe_lock(path: Path) -> str:
    """Why a file cannot be locked, as HDF5 does before it reads; empty where it can."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "another process has it open to write to it, and has locked it; read it when that has closed it"
    except OSError as error:
        return (
            f"its file system gives no locks ({error.strerror}); HDF5_USE_FILE_LOCKING=FALSE in the environment reads "
            "it without"
        )
    return ""


def check_links(path: Path, file: Any, key: str) -> None:
    """Raises ReaderError where `key` of an open HDF5 file lies behind a link to a file or object that is not there."""
    import h5py

    parts = key.split("/")
    for count in range(1, len(parts) + 1):
        inner = "/".join(parts[:count])
        try:
            link = file.get(inner, getlink=True)
        except (KeyError, OSError, RuntimeError):
            return
        if isinstance(link, h5py.ExternalLink):
            behind = path.parent / link.filename
            if not (behind.exists() or os.path.exists(link.filename)):
                raise ReaderError(f"{path}: {key!r} lies in another file: expected {behind}, found none")
            try:
                file[inner]
            except KeyError:
                raise ReaderError(
                    f"{path}: {key!r} lies in another file: expected {link.path!r} in {behind}, found none"
                ) from None
        elif link is None or inner not in file:
            return


def check_sources(path: Path, name: str, dataset: Any, seen: frozenset[tuple[Path, str]] = frozenset()) -> None:
    """Raises ReaderError for a missing file or dataset of which an HDF5 dataset is made.

    HDF5 fills in what is missing behind a virtual dataset, without a word.
    """
    import h5py

    for file, _, _ in dataset.external or []:
        if not (os.path.exists(file) or (path.parent / file).exists()):
            raise ReaderError(f"{path}: {name!r} is stored in other files: expected {file}, found none")
    if not dataset.is_virtual:
        return
    for source in dataset.virtual_sources():
        behind = path if source.file_name == "." else path.parent / source.file_name
        if "%b" in str(behind):
            continue  # a series of files, as many as there are
        if not behind.exists():
            raise ReaderError(f"{path}: {name!r} is made of other files: expected {behind}, found none")
        if (behind, source.dset_name) in seen:
            continue
        with contextlib.nullcontext(dataset.file) if behind == path else h5py.File(behind, "r") as opened:
            if source.dset_name not in opened:
                raise ReaderError(
                    f"{path}: {name!r} is made of other datasets: expected {source.dset_name!r} in {behind}, found none"
                )
            inner = opened[source.dset_name]
            if isinstance(inner, h5py.Dataset):
                check_sources(behind, source.dset_name, inner, seen | {(behind, source.dset_name)})
