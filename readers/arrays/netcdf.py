"""The NetCDF format, read by netCDF4: classic, 64-bit offset, 64-bit data, and NetCDF-4 with groups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf.lazy import netCDF4
from matex_tf.readers.arrays import hdf5, library, netcdf_header
from matex_tf.readers.arrays.dimensions import Dimension, make_dimension
from matex_tf.readers.arrays.hdf5 import NETCDF_ENDINGS, SIGNATURE
from matex_tf.readers.arrays.stack import Stack
from matex_tf.readers.arrays.variable import Variable, check_numeric, clean_texts
from matex_tf.readers.base import files
from matex_tf.readers.base.formats import ReaderError, register

_CACHE_BYTES = 1 << 20  # of the library's cache of chunks, for each variable


@register("NETCDF")
class NetCdf(Stack):
    """Variables of one file, or of several files that are concatenated ("run_*.nc", sorted by name).

    `sample` names the dimension of samples, by default the first of a variable. Packed variables are unpacked
    (`scale_factor`, `add_offset`); values marked by `_FillValue`, `missing_value` or `valid_range` are missing. `dtype`
    is the dtype of the returned data, or {variable: dtype}; str reads numbers stored as text as categories. Texts
    become integers (`DataSet.categories`). `parallel=True` opens files through MPI-IO; netCDF4 must be built with
    parallel I/O.
    """

    kind = "NetCDF"
    marks_missing = True

    @classmethod
    def recognises(cls, path: Path, head: bytes) -> bool:
        return netcdf_header.is_classic(head) or (head.startswith(SIGNATURE) and path.suffix.lower() in NETCDF_ENDINGS)

    def require_parallel(self) -> None:
        if not getattr(netCDF4, "__has_parallel4_support__", False):
            raise ReaderError(
                "parallel=True: expected a netCDF4 built with parallel I/O, found one without, such as the wheels from "
                "PyPI; build netCDF4 against a parallel HDF5 and NetCDF. Without parallel=True each rank opens the "
                "file by itself and reads its own rows, which needs no such build"
            )

    def open_file(self, path: Path) -> Any:
        head = files.read_head(path)
        if netcdf_header.is_classic(head):
            netcdf_header.check_header(path)
        elif head != SIGNATURE:
            begin = f"43 44 46 (classic) or {SIGNATURE.hex(' ')} (NetCDF-4)"
            raise files.make_magic_error(path, f"a NetCDF file, which begins with {begin}", head)
        usual = netCDF4.get_chunk_cache()
        # Slabs consist of complete chunks, so no chunk is read twice and the default cache of 64 MiB is not needed. The
        # default of the library is changed during opening, because changing it for one variable fails if the variable
        # has the name of a dimension.
        netCDF4.set_chunk_cache(_CACHE_BYTES, *usual[1:])
        try:
            return netCDF4.Dataset(path)
        finally:
            netCDF4.set_chunk_cache(*usual)

    def open_together(self, path: Path, communicator: Any) -> Any:
        return netCDF4.Dataset(path, parallel=True, comm=communicator)

    def find_variable(self, file: Any, path: Path, name: str) -> Variable | None:
        found = _find_stored(file, name)
        return None if found is None else _Variable(self, path, name, found)

    def check_whole(self, file: Any, path: Path, name: str) -> None:
        """As `Stack.check_whole`. Only a variable without chunks can refer to other files, so only that is checked."""

        def may_be_made() -> bool:
            found = _find_stored(file, name) if file.disk_format == "HDF5" else None
            # "contiguous" is netCDF4's name for every storage without chunks.
            return found is not None and found.chunking() == "contiguous"

        if library.call_library(may_be_made):
            hdf5.check_whole(path, name)

    def list_names(self, file: Any) -> list[str]:
        def walk(group: Any, before: str) -> list[str]:
            inner = [name for key, part in group.groups.items() for name in walk(part, f"{before}{key}/")]
            return [before + name for name in group.variables] + inner

        return walk(file, "")


def _find_stored(group: Any, name: str) -> Any:
    """The variable at the path `name` in a group; None if there is none."""
    *groups, last = name.strip("/").split("/")
    for inner in groups:
        if inner not in group.groups:
            return None
        group = group.groups[inner]
    return group.variables.get(last)


class _Variable(Variable):
    def __init__(self, owner: NetCdf, path: Path, name: str, variable: Any):
        self._variable = variable
        self.is_text = variable.dtype is str or getattr(variable.dtype, "kind", "") == "S"
        # In an array of characters the last dimension holds the characters of one text.
        self._has_letters = self.is_text and variable.dtype is not str and variable.ndim > 1
        axes = variable.ndim - self._has_letters
        super().__init__(owner, path, name, variable.shape[:axes], variable.dimensions[:axes])
        if self._has_letters:
            variable.set_auto_chartostring(False)
        chunks = variable.chunking()
        if isinstance(chunks, (list, tuple)):
            self.chunk = int(chunks[self.axis])
        self.dtype = np.dtype("i8") if self.is_text else self._find_dtype(path, name)

    def _find_dtype(self, path: Path, name: str) -> np.dtype:
        """The dtype of unpacked numbers. Raises ReaderError for other values."""
        variable = self._variable
        kind = "numbers of rows of different lengths (VLEN)" if isinstance(variable.datatype, netCDF4.VLType) else ""
        stored = check_numeric(path, name, variable.dtype, kind)
        if stored.kind == "i" and str(getattr(variable, "_Unsigned", "")).lower() == "true":
            stored = np.dtype(f"u{stored.itemsize}")
        # Single bytes have no default fill value, although the library assumes one.
        marks = {"_FillValue", "missing_value", "valid_min", "valid_max", "valid_range"}
        if stored.itemsize == 1 and not marks & set(variable.ncattrs()):
            variable.set_auto_mask(False)
        scales = [variable.getncattr(key) for key in ("scale_factor", "add_offset") if key in variable.ncattrs()]
        try:
            dtype = np.result_type(stored, *[np.asarray(scale).dtype for scale in scales])
        except TypeError:
            dtype = np.dtype(object)
        if dtype.kind not in "biufc":
            raise ReaderError(f"{path}: expected numbers as scale_factor and add_offset of {name!r}, found {scales}")
        return dtype

    def read_dimension(self, axis: int) -> Dimension:
        """The dimension at `axis`, with its coordinates from the innermost group that has it."""
        name, group = self._variable.dimensions[axis], self._variable.group()
        while group is not None and name not in group.dimensions:
            group = group.parent
        along = group.variables.get(name) if group is not None else None
        if along is None or along.dimensions != (name,):
            return Dimension(name)
        return make_dimension(name, along[:], getattr(along, "units", ""))

    def read_samples(self, start: int, stop: int) -> np.ndarray:
        found = self._variable[self.make_index(start, stop)]
        if self._has_letters:
            letters = np.ascontiguousarray(np.ma.filled(found, b""))
            found = letters.view(f"S{letters.shape[-1]}")[..., 0]
        return np.moveaxis(clean_texts(found) if self.is_text else found, self.axis, 0)

    @contextlib.contextmanager
    def enter_collective(self) -> Iterator[None]:
        self._variable.set_collective(True)  # never unset: the file closes after this collective read
        yield
