"""Libraries whose C code opens files by itself, so that `patches.files` does not see it: they are given the real paths.

On the ranks that are not the first these lie in the rank's private folder; on rank 0 what is written is noted.
"""

from __future__ import annotations

import os
from typing import Any

from matex_tf import files
from matex_tf.patches import _undo, file_notes, replace, when_imported
from matex_tf.patches.files import real_path


def install() -> None:
    if files.view() is None and files.news() is None:
        return
    when_imported("h5py._hl.files", lambda module: replace(module.File, "__init__", _h5py))
    when_imported("netCDF4", _netcdf)
    when_imported("pyarrow.parquet.core", _parquet)
    when_imported("sqlite3.dbapi2", lambda module: replace(module, "connect", _named_file))
    when_imported("sqlite3", lambda module: replace(module, "connect", _named_file))
    when_imported("cv2", lambda module: replace(module, "imwrite", _named_file))


def _place(path: Any, mode: str) -> Any:
    """Where a library is to open `path`, to read ("r") or to write, with the modes of `real_path`."""
    if mode != "r":
        file_notes.note_made(path)
    return real_path(path, None if mode == "r" else mode)


def _is_path(name: Any) -> bool:
    return isinstance(name, (str, bytes, os.PathLike)) and "://" not in os.fsdecode(name)


def _h5py(original: Any) -> Any:
    def __init__(self, name, mode="r", *args, **kwargs):
        if _is_path(name) and kwargs.get("driver") is None:
            name = _place(name, mode)
        return original(self, name, mode, *args, **kwargs)

    return __init__


def _netcdf(module: Any) -> None:
    original = module.Dataset

    class Meta(type(original)):
        """Groups and files of several files are data sets, too, and made by the library of the original."""

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, original)

    class Dataset(original, metaclass=Meta):
        __slots__ = ()
        __doc__ = original.__doc__

        def __init__(self, filename, mode="r", clobber=True, *args, **kwargs):
            # What all ranks open together through MPI, or what lies in memory, is no rank's own file.
            elsewhere = any(kwargs.get(name) for name in ("parallel", "diskless")) or kwargs.get("memory") is not None
            if _is_path(filename) and not elsewhere:
                how = {"w": "w" if clobber else "x", "x": "x", "a": "a"}.get(mode.rstrip("s"), mode.rstrip("s"))
                filename = _place(filename, how)
            super().__init__(filename, mode, clobber, *args, **kwargs)

    Dataset.__module__, Dataset.__qualname__ = module.__name__, "Dataset"  # by which it is pickled
    module.Dataset = Dataset
    _undo.append(lambda: setattr(module, "Dataset", original))


def _parquet(module: Any) -> None:
    replace(module.ParquetWriter, "__init__", _arrow_file("w"))
    for reader in (module.ParquetFile, module.ParquetDataset):
        replace(reader, "__init__", _arrow_file("r"))


def _arrow_file(mode: str) -> Any:
    def make(original: Any) -> Any:
        def __init__(self, where, *args, **kwargs):
            if _is_path(where) and kwargs.get("filesystem") is None:
                where = _place(where, mode)
            return original(self, where, *args, **kwargs)

        return __init__

    return make


def _named_file(original: Any) -> Any:
    def function(name, *args, **kwargs):
        if _is_path(name) and os.fsdecode(name) != ":memory:" and not kwargs.get("uri"):
            name = _place(name, "a")
        return original(name, *args, **kwargs)

    return function
