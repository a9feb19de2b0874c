"""Finds why a NetCDF, HDF5 or Zarr file cannot be read: damage, a lock, or a missing file to which it refers."""

from __future__ import annotations

import contextlib
import fcntl
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matex_tf.lazy import h5py
from matex_tf.readers.arrays import library
from matex_tf.readers.base.formats import ReaderError

# Exceptions that the libraries raise for damaged files.
_ERRORS: tuple[type[Exception], ...] = (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError)
_ERRORS += (EOFError, zlib.error, zipfile.BadZipFile)


@contextlib.contextmanager
def convert_errors(path: Path, kind: str, activity: str) -> Iterator[None]:
    """Convert errors of the library that reads `path` to ReaderErrors that name the file.

    `kind`: the name of the format. `activity`: what the context does with the file, such as "opening".
    """
    try:
        yield
    except (FileNotFoundError, PermissionError, MemoryError):
        raise
    except ReaderError as error:
        if str(path) in str(error):  # the message is complete
            raise
        raise ReaderError(f"{path}: damaged: expected a readable {kind} file, found: {error}") from None
    except _ERRORS as error:
        if isinstance(error, OSError) and not path.is_dir() and (lock := describe_lock(path)):
            raise ReaderError(f"{path}: {lock}") from None
        subject = "it" if path.is_dir() else f"its {path.stat().st_size if path.exists() else 0} bytes"
        raise ReaderError(
            f"{path}: truncated or damaged: expected a complete {kind} file, found, while {activity} {subject}: "
            f"{type(error).__name__}: {error}"
        ) from None


def describe_lock(path: Path) -> str:
    """Describe why a file cannot be locked, as HDF5 does before it reads. Empty if it can be locked."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "another process has opened it for writing and locked it; read it after that process has closed it"
    except OSError as error:
        return (
            f"its file system does not support locks ({error.strerror}); set HDF5_USE_FILE_LOCKING=FALSE in the "
            "environment to read it without a lock"
        )
    return ""


def find_file(owner: Path, name: str, variable: str) -> Path | None:
    """The file `name` to which a link or a virtual dataset in the file `owner` refers, found as HDF5 finds it; or None.

    HDF5 searches in this order: the name itself, if it is absolute; the folders of the environment variable `variable`;
    the folder of `owner`; the current folder; the folder to which `owner` links, if it is a link. In these folders it
    looks for the last part of an absolute name.
    """
    folder = Path(os.path.abspath(owner)).parent
    candidates = [Path(name)] if os.path.isabs(name) else []
    file_name = os.path.basename(name) if candidates else name
    prefix = os.environ.get(variable, "")
    # ${ORIGIN} stands for the folder of `owner`. HDF5 replaces it only at the beginning of the complete text, which is
    # then one folder. Here the first one is replaced anywhere: elsewhere the result is hardly an existing folder.
    prefixes = [*prefix.split(":"), prefix.replace("${ORIGIN}", str(folder), 1)]
    candidates += [Path(folder_name) / file_name for folder_name in prefixes if folder_name]
    candidates += [folder / file_name, Path(file_name), owner.resolve().parent / file_name]
    return next((candidate for candidate in candidates if candidate.exists()), None)


def _find_external(owner: Path, name: str) -> Path | None:
    """The external file `name`, with data of a dataset in the file `owner`; or None.

    HDF5 searches one folder: HDF5_EXTFILE_PREFIX, or else the current folder.
    """
    prefix = os.environ.get("HDF5_EXTFILE_PREFIX", "").replace("${ORIGIN}", str(Path(os.path.abspath(owner)).parent))
    external_file = Path(prefix) / name
    return external_file if external_file.exists() else None


def check_links(path: Path, file: Any, key: str) -> None:
    """Raises ReaderError if `key` of an open HDF5 file goes through a link to a missing file or object.

    Call it within `library.call_library`, which allows one use of HDF5 at a time.
    """
    group = file
    for link_name in key.split("/"):
        try:
            link = group.get(link_name, getlink=True)
        except (AttributeError, KeyError, OSError, RuntimeError):
            link = None
        if link is None:
            return  # the caller reports a missing name
        link_file = Path(group.file.filename)  # the file that contains the link; external links lead to other files
        try:
            group = group[link_name]
        except (KeyError, OSError, RuntimeError) as error:
            if isinstance(link, h5py.ExternalLink):
                target_file = find_file(link_file, link.filename, "HDF5_EXT_PREFIX")
                expected, reason = f"{link.path!r} in {target_file}", f" ({error})"
                if target_file is None:
                    expected, reason = str(link_file.parent / link.filename), ""
                raise ReaderError(
                    f"{path}: {key!r} refers to another file: expected {expected}, found none{reason}"
                ) from None
            if isinstance(link, h5py.SoftLink):
                raise ReaderError(
                    f"{path}: {key!r} goes through a link: expected {link.path!r} in {link_file}, found none ({error})"
                ) from None
            raise


def check_sources(path: Path, key: str) -> None:
    """Raises ReaderError if a source of the dataset `key` of an HDF5 file, a file or a dataset, is missing.

    HDF5 silently returns fill values for missing sources of a virtual dataset. A source may be virtual too, so its own
    sources are checked as well.
    """
    pending: dict[Path, set[str]] = {path: {key}}  # the names of the datasets to check, by file
    checked: set[tuple[Path, str]] = set()
    while pending:
        file, names = pending.popitem()
        new_names = {name for name in names if (file.resolve(), name) not in checked}  # sources may form a circle
        checked |= {(file.resolve(), name) for name in new_names}
        for dataset, source_name, source_datasets in _look_up_sources(path, key, file, new_names):
            # ".": the sources are in the same file.
            source_file = file if source_name == "." else find_file(file, source_name, "HDF5_VDS_PREFIX")
            if source_file is None:
                raise ReaderError(
                    f"{file}: {dataset!r} is made of other files: expected {file.parent / source_name}, found none"
                )
            pending.setdefault(source_file, set()).update(source_datasets)


def _look_up_sources(path: Path, key: str, file: Path, names: set[str]) -> list[tuple[str, str, set[str]]]:
    """Returns (dataset, source file, datasets in the source file) for each source file of the datasets `names`.

    `path`, `key`: the file and the dataset that the script reads, for messages.
    """

    def read_sources() -> list[tuple[str, str, set[str]]]:
        sources: list[tuple[str, str, set[str]]] = []
        with h5py.File(file, "r") as hdf5_file:
            for name in names:
                dataset = hdf5_file.get(name)
                if not isinstance(dataset, h5py.Dataset):
                    raise ReaderError(
                        f"{path}: {key!r} is made of other datasets: expected {name!r} in {file}, found none"
                    )
                for external_name, _, _ in dataset.external or []:  # raw files with the bytes of the dataset
                    if _find_external(file, external_name) is None:
                        raise ReaderError(
                            f"{file}: {name!r} is stored in other files: expected {external_name}, found none; HDF5 "
                            "looks in the current folder, or in that of HDF5_EXTFILE_PREFIX"
                        )
                sources += [
                    (name, source_file, source_names) for source_file, source_names in _list_sources(dataset).items()
                ]
        return sources

    if not names:
        return []
    try:
        return library.call_library(read_sources)
    except OSError as error:
        reason = describe_lock(file) or f"found {error}"
        raise ReaderError(
            f"{path}: {key!r} is made of other files: expected a whole HDF5 file {file}, {reason}"
        ) from None


def _list_sources(dataset: Any) -> dict[str, set[str]]:
    """The sources of a virtual dataset: names of datasets, keyed by the name of their file."""
    sources: dict[str, set[str]] = {}
    for source in dataset.virtual_sources() if dataset.is_virtual else []:
        # "%%" is an escaped "%". "\0", which no name contains, replaces it first, so that "%%b" is not read as "%b".
        names = [name.replace("%%", "\0") for name in (source.file_name, source.dset_name)]
        if not any("%b" in name for name in names):  # a series with "%b" may have any number of sources
            file, dataset_name = (name.replace("\0", "%") for name in names)
            sources.setdefault(file, set()).add(dataset_name)
    return sources
