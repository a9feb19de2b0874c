"""Libraries that open files in C code, such as h5py and pyarrow: their functions receive the real paths of files.

On rank 0 paths stay as they are, and most writes are noted in the journal.
"""

from __future__ import annotations

import ctypes
import glob
import os
import urllib.parse
from typing import Any

from matex_tf.files import overlay
from matex_tf.files.paths import find_key, find_real_path, is_local
from matex_tf.files.wrappers import call_with_converted, make_meta
from matex_tf.runtime import real_files
from matex_tf.runtime.hooks import Table, put_function

HOOKS = Table(when=overlay.is_on)

_IF_HOOK_MISSING = "the library does not open the rank's own file"

# Functions with an argument that is a path. INDEX is the position of the argument, with `self`. MODE says how the
# library opens the file: r to read it, w to replace it, a to write with the present content, if there is a file. A
# library that is not installed, such as cv2 (OpenCV), is left out.
_PATHS = """
    MODULE FUNCTION_OR_METHOD ARGUMENT INDEX MODE
    pyarrow output_stream source 0 w
    pyarrow input_stream source 0 r
    pyarrow create_memory_map path 0 w
    pyarrow.dataset dataset source 0 r
    pyarrow.dataset parquet_dataset metadata_path 0 r
    pyarrow.dataset write_dataset base_dir 1 w
    pyarrow.parquet.core ParquetWriter.__init__ where 1 w
    pyarrow.parquet.core ParquetFile.__init__ source 1 r
    pyarrow.parquet.core ParquetDataset.__init__ path_or_paths 1 r
    pyarrow.parquet.core read_metadata where 0 r
    pyarrow.parquet.core read_schema where 0 r
    pyarrow.csv write_csv output_file 1 w
    pyarrow.csv read_csv input_file 0 r
    pyarrow.csv open_csv input_file 0 r
    pyarrow.json read_json input_file 0 r
    pyarrow.feather write_feather dest 1 w
    pyarrow.feather read_table source 0 r
    pyarrow.feather read_feather source 0 r
    pyarrow.ipc RecordBatchFileWriter.__init__ sink 1 w
    pyarrow.ipc RecordBatchStreamWriter.__init__ sink 1 w
    pyarrow.ipc open_file source 0 r
    pyarrow.ipc open_stream source 0 r
    pyarrow.orc ORCWriter.__init__ where 1 w
    pyarrow.orc ORCFile.__init__ source 1 r
    pyarrow.orc read_table source 0 r
    cv2 imwrite filename 0 a
    cv2 imread filename 0 r
    sqlite3 connect database 0 a
    sqlite3.dbapi2 connect database 0 a
"""
_NOTED = ("ParquetWriter.__init__", "write_dataset", "write_csv", "write_feather", "ORCWriter.__init__")
"""The functions of the table whose writes rank 0 notes in the journal, and so also replaces. An audit event of Python
reports writes of SQLite. Of writes by the others, a rank that is behind in the script sees the new content.
"""
_URI_INDEX = 7  # the position of the argument `uri` of sqlite3.connect


def _find_place(path: Any, mode: str, creates_more_files: bool = False) -> Any:
    """`find_real_path`. A folder to read stays if it has files of the disk: no real folder has the files of both."""
    should_stay = mode == "r" and is_local(path) and os.path.isdir(path) and _has_files_of_disk(path)
    return path if should_stay else find_real_path(path, mode, creates_more_files)


def _has_files_of_disk(folder: Any) -> bool:
    """Whether this rank sees files of the disk in a folder that the view handles, perhaps next to files of its own."""
    key = find_key(folder) if overlay.has_view() else None
    with real_files.use_real_files():
        return key is not None and os.path.isdir(key) and not overlay.get_own_view().has_only_own(key)


def _find_database(name: Any, is_uri: bool) -> Any:
    """The real path of a database, next to which SQLite creates other files.

    name: a path. With `is_uri` it may also be "file:PATH?OPTIONS", and the result has this form, too.
    """
    text = os.fsdecode(name) if isinstance(name, (str, bytes, os.PathLike)) else ""
    if not text or ":memory:" in text:
        return name
    uri_parts = urllib.parse.urlsplit(text)
    if not is_uri or uri_parts.scheme != "file":
        return _find_place(name, "a", creates_more_files=True)
    sqlite_mode = dict(urllib.parse.parse_qsl(uri_parts.query)).get("mode", "rwc")
    if not uri_parts.path or sqlite_mode == "memory":
        return name
    mode = "r" if sqlite_mode == "ro" else "a"
    place = os.path.abspath(_find_place(urllib.parse.unquote(uri_parts.path), mode, creates_more_files=True))
    return uri_parts._replace(netloc="", path=urllib.parse.quote(place)).geturl()


def _wrap_path_argument(name: str, index: int, mode: str) -> Any:
    """For functions whose argument `name`, at position `index`, is a path, or a list of paths to read.

    For a database the argument may be a URI (`_find_database`). mode: of the table.
    """

    def make(original: Any) -> Any:
        def function(*args, **kwargs):
            def find_in_view(path: Any) -> Any:
                if name == "database":
                    uri = kwargs.get("uri", args[_URI_INDEX] if len(args) > _URI_INDEX else False)
                    return _find_database(path, bool(uri))
                if mode == "r" and isinstance(path, (list, tuple)):
                    return [_find_place(item, mode) for item in path]
                return _find_place(path, mode)

            # With a file system of pyarrow or of fsspec as an argument, the path is one of this file system.
            other_arguments = (*args[index + 1 :], *kwargs.values())
            if any(hasattr(value, "open_input_file") or hasattr(value, "protocol") for value in other_arguments):
                return original(*args, **kwargs)
            return call_with_converted(original, args, kwargs, name, index, find_in_view)

        return function

    return make


for _module, _name, _argument, _index, _mode in map(str.split, _PATHS.strip().splitlines()[1:]):
    # `has_view` is true on a rank with a private folder, `is_on` also on rank 0, which notes its writes. `later`: the
    # module may never be imported.
    _when = overlay.is_on if _name in _NOTED else overlay.has_view
    _declare = HOOKS.replace(_module, _name, _IF_HOOK_MISSING, later=True, when=_when)
    _declare(_wrap_path_argument(_argument, int(_index), _mode))


@HOOKS.replace("pyarrow", "memory_map", _IF_HOOK_MISSING)
def _wrap_memory_map(original: Any) -> Any:
    def memory_map(path, mode="r"):
        # Modes other than "r" and "rb" let the script write to the mapped file, whose content and size stay.
        file_mode = "r" if mode in ("r", "rb") else "a"
        return original(_find_place(path, file_mode), mode)

    return memory_map


def _find_hdf5(name: Any, mode: str, fapl: Any = None) -> Any:
    """The real path of an HDF5 file. mode: see `_find_place`.

    fapl: HDF5's list of properties for opening a file, such as the driver, which reads and writes it; None: default.
    """
    from h5py import h5fd

    driver = h5fd.SEC2 if fapl is None else fapl.get_driver()
    # Other drivers, such as the driver of MPI, open no file of one rank.
    if not is_local(name) or driver not in (h5fd.SEC2, h5fd.STDIO, h5fd.CORE):
        return name
    if driver == h5fd.CORE and fapl is not None and not fapl.get_fapl_core()[1]:
        mode = "r"  # a file in memory: it may be read from the disk, and is not written there
    return os.fsencode(_find_place(name, mode))


@HOOKS.replace("h5py.h5f", "open", _IF_HOOK_MISSING)
def _wrap_h5py_open(original: Any) -> Any:
    """For the functions with which `h5py.File` and scripts open a file."""
    from h5py import h5f

    def open(name, flags=h5f.ACC_RDWR, fapl=None):
        return original(_find_hdf5(name, "r+" if flags & h5f.ACC_RDWR else "r", fapl), flags, fapl)

    return open


@HOOKS.replace("h5py.h5f", "create", _IF_HOOK_MISSING)
def _wrap_h5py_create(original: Any) -> Any:
    from h5py import h5f

    def create(name, flags=h5f.ACC_TRUNC, fcpl=None, fapl=None):
        return original(_find_hdf5(name, "x" if flags & h5f.ACC_EXCL else "w", fapl), flags, fcpl, fapl)

    return create


@HOOKS.replace("h5py.h5f", "is_hdf5", _IF_HOOK_MISSING, when=overlay.has_view)
def _wrap_h5py_query(original: Any) -> Any:
    return lambda name: original(_find_hdf5(name, "r"))


def _put_public(owner: Any, name: str, make: Any) -> None:
    """Replace a class of the module `owner` by a class that pickle finds there, and that is never freed.

    `put_function` gives the new class the `__module__` of the original class, a C module without the new class.
    """
    put_function(owner, name, make)
    new_class = getattr(owner, name)
    new_class.__module__ = owner.__name__
    # A data set that is freed at the very end of the process looks up attributes in the class.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(new_class))


@HOOKS.replace("netCDF4", "Dataset", _IF_HOOK_MISSING, put=_put_public)
def _make_dataset(original: Any) -> Any:
    # Groups and MFDataset count as instances.
    class Dataset(original, metaclass=make_meta(original)):  # type: ignore[metaclass]
        __slots__ = ()

        def __init__(
            self, filename, mode="r", clobber=True, format="NETCDF4", diskless=False, persist=False, *args, **kwargs
        ):
            # Files that all ranks open through MPI, and files in memory, are not a rank's own.
            is_in_memory = kwargs.get("memory") is not None or (diskless and not persist)
            if not kwargs.get("parallel") and not is_in_memory:
                file_mode = mode.rstrip("s")  # without the letter for unbuffered access
                may_only_create = file_mode == "w" and not clobber
                filename = _find_place(filename, "x" if may_only_create else file_mode)
            super().__init__(filename, mode, clobber, format, diskless, persist, *args, **kwargs)

    return Dataset


@HOOKS.replace("netCDF4", "MFDataset.__init__", _IF_HOOK_MISSING, when=overlay.has_view)
def _wrap_netcdf_files(original: Any) -> Any:
    def __init__(self, files, *args, **kwargs):
        if isinstance(files, str) and "://" not in files:
            files = sorted(glob.glob(files)) or files
        if isinstance(files, (list, tuple)):
            files = [_find_place(path, "r") for path in files]
        if "master_file" in kwargs:
            kwargs["master_file"] = _find_place(kwargs["master_file"], "r")
        return original(self, files, *args, **kwargs)

    return __init__


# C classes of pyarrow, whose methods cannot be replaced: a subclass takes the place of each class.


@HOOKS.replace("pyarrow", "OSFile", _IF_HOOK_MISSING, when=overlay.has_view)
def _make_arrow_file(original: Any) -> Any:
    class OSFile(original):
        def __new__(cls, path, mode="r", *args, **kwargs):
            return super().__new__(cls, _find_place(path, mode[0]), mode, *args, **kwargs)

    return OSFile


@HOOKS.replace("pyarrow.csv", "CSVWriter", _IF_HOOK_MISSING, later=True, when=overlay.has_view)
def _make_arrow_csv(original: Any) -> Any:
    class CSVWriter(original):
        def __init__(self, sink, *args, **kwargs):
            super().__init__(_find_place(sink, "w"), *args, **kwargs)

    return CSVWriter
