"""Libraries whose C code opens files, so that `patches.files.python` does not see it: they are given the real paths.

On the ranks that are not the first these lie in the rank's private folder; on rank 0 what is written is noted.
"""

from __future__ import annotations

import functools
import glob
import os
from collections.abc import Sequence
from typing import Any, TypeGuard

from matex_tf.io import overlay
from matex_tf.patches.files import journal
from matex_tf.patches.files.opening import real_path
from matex_tf.runtime import real_files
from matex_tf.runtime.replace import replace, when_imported

_ARROW = {
    "pyarrow": (("output_stream", "source", 0, "w"), ("input_stream", "source", 0, "r")),
    "pyarrow.csv": (
        ("write_csv", "output_file", 1, "w"),
        ("read_csv", "input_file", 0, "r"),
        ("open_csv", "input_file", 0, "r"),
    ),
    "pyarrow.json": (("read_json", "input_file", 0, "r"),),
    "pyarrow.feather": (
        ("write_feather", "dest", 1, "w"),
        ("read_table", "source", 0, "r"),
        ("read_feather", "source", 0, "r"),
    ),
    "pyarrow.ipc": (
        ("RecordBatchFileWriter.__init__", "sink", 1, "w"),
        ("RecordBatchStreamWriter.__init__", "sink", 1, "w"),
        ("open_file", "source", 0, "r"),
        ("open_stream", "source", 0, "r"),
    ),
    "pyarrow.orc": (
        ("ORCWriter.__init__", "where", 1, "w"),
        ("ORCFile.__init__", "source", 1, "r"),
        ("read_table", "source", 0, "r"),
    ),
}
"""Functions and methods of each module: the argument that is a path, its index, and how it is opened."""
_OF_SQLITE = ("-journal", "-wal", "-shm")
"""What SQLite adds to a database's name for the files of a transaction."""


def install() -> None:
    if overlay.view() is None and overlay.news() is None:
        return
    when_imported("h5py._hl.files", lambda module: replace(module.File, "__init__", _h5py))
    when_imported("netCDF4", _netcdf)
    when_imported("pyarrow.parquet.core", _parquet)
    for module, functions in _ARROW.items():
        when_imported(module, functools.partial(_arrow, functions=functions))
    when_imported("pyarrow", _arrow_file)
    when_imported("pyarrow.csv", _arrow_csv)
    when_imported("pyarrow.dataset", lambda module: replace(module, "write_dataset", _with_path("base_dir", 1, "w")))
    for name in ("sqlite3.dbapi2", "sqlite3"):
        when_imported(name, lambda module: replace(module, "connect", _with_path("database", 0, "a", _OF_SQLITE)))
    when_imported("cv2", lambda module: replace(module, "imwrite", _with_path("filename", 0, "a")))


def _place(path: Any, mode: str, beside: Sequence[str] = ()) -> Any:
    """Where a library is to open `path`, to read ("r") or to write, with the modes of `real_path`.

    It makes and removes other files then, whose names go on as `beside` says.
    """
    if mode != "r":
        for ending in ("", *beside):
            journal.note_made(os.fsdecode(path) + ending)
        return real_path(path, mode, bool(beside))
    # Of a folder in which both this rank and others wrote there is no one place that holds all: the one on disk is.
    return path if os.path.isdir(path) and not _is_own(path) else real_path(path, None)


def _is_own(folder: Any) -> bool:
    """Whether what this rank is to see of `folder` is all in one place other than the disk."""
    view = overlay.view()
    with real_files.use_real_files():
        key = None if view is None else view.key(folder)
        return view is not None and key is not None and (not os.path.isdir(key) or view.has_only_own(key))


def _is_path(name: Any) -> TypeGuard[str | bytes | os.PathLike]:
    return isinstance(name, (str, bytes, os.PathLike)) and "://" not in os.fsdecode(name)


def _with_path(name: str, index: int, mode: str, beside: Sequence[str] = ()) -> Any:
    """For functions whose argument `name`, the one of this index, is a path, or a list of paths to read."""

    def make(original: Any) -> Any:
        def function(*args, **kwargs):
            given = kwargs.get(name) if name in kwargs else args[index] if len(args) > index else None
            elsewhere = kwargs.get("uri") or any(map(_is_file_system, (*args[index + 1 :], *kwargs.values())))
            if elsewhere or (_is_path(given) and os.fsdecode(given) == ":memory:"):
                return original(*args, **kwargs)
            if _is_path(given):
                given = _place(given, mode, beside)
            elif mode == "r" and isinstance(given, (list, tuple)):
                given = [_place(part, mode) if _is_path(part) else part for part in given]
            else:
                return original(*args, **kwargs)
            if name in kwargs:
                return original(*args, **{**kwargs, name: given})
            return original(*args[:index], given, *args[index + 1 :], **kwargs)

        return function

    return make


def _is_file_system(value: Any) -> bool:
    return hasattr(value, "open_input_file") or hasattr(value, "protocol")  # pyarrow's, fsspec's


def _h5py(original: Any) -> Any:
    def __init__(self, name, mode="r", *args, **kwargs):
        if _is_path(name) and kwargs.get("driver") is None:
            name = _place(name, mode)
        return original(self, name, mode, *args, **kwargs)

    return __init__


def _netcdf(module: Any) -> None:
    original: Any = module.Dataset
    meta: Any = type(original)

    class Meta(meta):
        """Groups and files of several files are data sets, too, and made by the library of the original."""

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original) if cls is Dataset else super().__instancecheck__(instance)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, original) if cls is Dataset else super().__subclasscheck__(subclass)

    class Dataset(original, metaclass=Meta):
        __slots__ = ()
        __doc__ = original.__doc__

        def __init__(
            self, filename, mode="r", clobber=True, format="NETCDF4", diskless=False, persist=False, *args, **kwargs
        ):
            # What all ranks open together through MPI, or what lies in memory, is no rank's own file.
            elsewhere = kwargs.get("parallel") or kwargs.get("memory") is not None or (diskless and not persist)
            if _is_path(filename) and not elsewhere:
                how = {"w": "w" if clobber else "x"}.get(mode.rstrip("s"), mode.rstrip("s"))
                filename = _place(filename, how)
            super().__init__(filename, mode, clobber, format, diskless, persist, *args, **kwargs)

    Dataset.__module__, Dataset.__qualname__ = module.__name__, "Dataset"  # by which it is pickled
    module.Dataset = Dataset
    replace(module.MFDataset, "__init__", _netcdf_files)


def _netcdf_files(original: Any) -> Any:
    def __init__(self, files, *args, **kwargs):
        if isinstance(files, str) and "://" not in files:
            files = sorted(glob.glob(files)) or files
        if isinstance(files, (list, tuple)):
            files = [_place(path, "r") if _is_path(path) else path for path in files]
        if _is_path(kwargs.get("master_file")):
            kwargs["master_file"] = _place(kwargs["master_file"], "r")
        return original(self, files, *args, **kwargs)

    return __init__


def _arrow(module: Any, functions: tuple[tuple[str, str, int, str], ...]) -> None:
    for name, argument, index, mode in functions:
        owner, name = (module, name) if "." not in name else (getattr(module, name.split(".")[0]), name.split(".")[1])
        replace(owner, name, _with_path(argument, index, mode))


def _arrow_file(module: Any) -> None:
    class OSFile(module.OSFile):
        __doc__ = module.OSFile.__doc__

        def __new__(cls, path, mode="r", *args, **kwargs):
            return super().__new__(cls, _place(path, mode[0]) if _is_path(path) else path, mode, *args, **kwargs)

    _put_in_place(module, OSFile)


def _arrow_csv(module: Any) -> None:
    class CSVWriter(module.CSVWriter):
        __doc__ = module.CSVWriter.__doc__

        def __init__(self, sink, *args, **kwargs):
            super().__init__(_place(sink, "w") if _is_path(sink) else sink, *args, **kwargs)

    _put_in_place(module, CSVWriter)


def _put_in_place(module: Any, new: type) -> None:
    """Put `new` into `module` for the class of C that it is made of, whose methods cannot be replaced."""
    original = getattr(module, new.__name__)
    new.__module__, new.__qualname__ = original.__module__, original.__qualname__
    setattr(module, new.__name__, new)


def _parquet(module: Any) -> None:
    replace(module.ParquetWriter, "__init__", _with_path("where", 1, "w"))
    replace(module.ParquetFile, "__init__", _with_path("source", 1, "r"))
    replace(module.ParquetDataset, "__init__", _with_path("path_or_paths", 1, "r"))
    for name in ("read_metadata", "read_schema"):
        replace(module, name, _with_path("where", 0, "r"))
