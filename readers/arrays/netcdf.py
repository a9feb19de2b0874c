"""The NetCDF format, read by netCDF4: classic, 64-bit offset, 64-bit data, and NetCDF-4 with groups."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf.lazy import netCDF4
from matex_tf.readers.arrays import hdf5, library, netcdf_header
from matex_tf.readers.arrays.dimensions import Dimension, make_dimension
from matex_tf.readers.arrays.hdf5 import NETCDF_ENDINGS, SIGNATURE
from matex_tf.readers.arrays.stack import Stack
from matex_tf.readers.arrays.texts import TextVariable
from matex_tf.readers.arrays.variable import Variable, check_numeric, find_dtypes
from matex_tf.readers.base import files
from matex_tf.readers.base.formats import ReaderError, register
from matex_tf.sharding.shard_arrays import ShardArray

# The least and the most bytes of a slab, which one call reads; between them, a read has `_SLABS` slabs. The library
# returns masked arrays, which take several times a slab's size, but larger slabs need fewer calls.
_SLAB_BYTES = (1 << 20, 16 << 20)
_SLABS = 16
# Up to this size one call reads everything, without a copy. Failures of other ranks are noticed only between calls.
_MOST_AT_ONCE = 512 << 20
_PIECE_BYTES = 1 << 20  # `read_at_once` replaces fill values in pieces of this size
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
            beginnings = f"43 44 46 (classic) or {SIGNATURE.hex(' ')} (NetCDF-4)"
            raise files.make_magic_error(path, f"a NetCDF file, which begins with {beginnings}", head)
        usual_cache = netCDF4.get_chunk_cache()
        # Slabs consist of complete chunks, so no chunk is read twice and the default cache of 64 MiB is not needed. The
        # default of the library is changed during opening, because changing it for one variable fails if the variable
        # has the name of a dimension.
        netCDF4.set_chunk_cache(_CACHE_BYTES, *usual_cache[1:])
        try:
            return netCDF4.Dataset(path)
        finally:
            netCDF4.set_chunk_cache(*usual_cache)

    def open_together(self, path: Path, communicator: Any) -> Any:
        return netCDF4.Dataset(path, parallel=True, comm=communicator)

    def find_variable(self, file: Any, path: Path, name: str) -> Variable | None:
        variable = _find_stored(file, name)
        if variable is None:
            return None
        is_text = variable.dtype is str or getattr(variable.dtype, "kind", "") == "S"
        return _make_text(self, path, name, variable) if is_text else _Variable(self, path, name, variable)

    def check_whole(self, file: Any, path: Path, name: str) -> None:
        """Raises ReaderError if a file that the variable refers to is missing.

        Only a variable without chunks can refer to other files, so no other is checked.
        """

        def may_refer_to_files() -> bool:
            variable = _find_stored(file, name) if file.disk_format == "HDF5" else None
            # "contiguous" is netCDF4's name for every storage without chunks.
            return variable is not None and variable.chunking() == "contiguous"

        if library.call_library(may_refer_to_files):
            hdf5.check_whole(path, name)

    def list_names(self, file: Any) -> list[str]:
        def walk(group: Any, prefix: str) -> list[str]:
            inner_names = [name for key, subgroup in group.groups.items() for name in walk(subgroup, f"{prefix}{key}/")]
            return [prefix + name for name in group.variables] + inner_names

        return walk(file, "")


def _find_stored(group: Any, name: str) -> Any:
    """The variable at the path `name` in a group; None if there is none."""
    *groups, variable_name = name.strip("/").split("/")
    for group_name in groups:
        if group_name not in group.groups:
            return None
        group = group.groups[group_name]
    return group.variables.get(variable_name)


def _make_text(owner: NetCdf, path: Path, name: str, variable: Any) -> TextVariable:
    """The text variable for a stored variable of texts, or of characters."""
    # In an array of characters the last dimension holds the characters of one text.
    has_letters = variable.dtype is not str and variable.ndim > 1
    names = variable.dimensions[:-1] if has_letters else variable.dimensions
    if has_letters:
        variable.set_auto_chartostring(False)

    def read(index: tuple[slice, ...]) -> Any:
        values = variable[index]
        if not has_letters:
            return values
        characters = np.ascontiguousarray(np.ma.filled(values, b""))
        return characters.view(f"S{characters.shape[-1]}")[..., 0]

    read_dimension = functools.partial(_read_dimension, variable)
    return TextVariable(owner, path, name, variable.shape[: len(names)], names, read_dimension, read)


def _read_dimension(variable: Any, axis: int) -> Dimension:
    """The dimension at an axis of a stored variable, with its coordinates from the innermost group that has it."""
    name, group = variable.dimensions[axis], variable.group()
    while group is not None and name not in group.dimensions:
        group = group.parent
    coordinates = group.variables.get(name) if group is not None else None
    if coordinates is None or coordinates.dimensions != (name,):
        return Dimension(name)
    return make_dimension(name, coordinates[:], getattr(coordinates, "units", ""))


class _Variable(Variable):
    """A variable of numbers, with samples along `axis`. `arrangement` brings them into the order of the first file.

    The library masks missing values; a `_plain_fill` is replaced by NaN here, faster.
    """

    def __init__(self, owner: NetCdf, path: Path, name: str, variable: Any):
        kind = "numbers of rows of different lengths (VLEN)" if isinstance(variable.datatype, netCDF4.VLType) else ""
        stored_dtype = check_numeric(path, name, variable.dtype, kind)
        read_dimension = functools.partial(_read_dimension, variable)
        super().__init__(owner, path, name, variable.shape, variable.dimensions, read_dimension)
        self._variable = variable
        chunks = variable.chunking()
        if isinstance(chunks, (list, tuple)):
            self.chunk = int(chunks[self.axis])
        attribute_names = set(variable.ncattrs())
        packing_names = attribute_names & {"_Unsigned", "scale_factor", "add_offset"}
        attributes = {key: variable.getncattr(key) for key in packing_names}
        stored_dtype, self.dtype = find_dtypes(path, name, stored_dtype, attributes)
        # Single bytes have no default fill value, although the library assumes one.
        mark_names = {"_FillValue", "missing_value", "valid_min", "valid_max", "valid_range"}
        if stored_dtype.itemsize == 1 and not mark_names & attribute_names:
            variable.set_auto_mask(False)
        self._plain_fill = self._find_plain_fill()

    def _find_plain_fill(self) -> Any:
        """The only number that marks missing values, for floats without other rules; None otherwise.

        If there is one, the library no longer masks values: `_restore_missing` replaces the number by NaN.
        """
        variable = self._variable
        rules = {"scale_factor", "add_offset", "missing_value", "valid_min", "valid_max", "valid_range", "_Unsigned"}
        if self.dtype.kind != "f" or rules & set(variable.ncattrs()):
            return None
        # Searching here takes one pass over the values; the library's masked arrays take several.
        variable.set_auto_maskandscale(False)
        default_fill = netCDF4.default_fillvals[self.dtype.str[1:]]
        return self.dtype.type(getattr(variable, "_FillValue", default_fill))

    def choose_slab(self, size: int) -> int:
        min_bytes, max_bytes = _SLAB_BYTES
        return min(max_bytes, max(min_bytes, size // _SLABS))

    def put_slab(self, piece: np.ndarray, slab: np.ndarray, begin: int) -> None:
        if self._plain_fill is not None:
            slab = np.ma.getdata(slab)
            self._restore_missing(slab)
        super().put_slab(piece, slab, begin)

    def read_at_once(self, start: int, stop: int) -> np.ndarray | None:
        size = (stop - start) * int(np.prod(self.row_shape, dtype=np.int64)) * self.dtype.itemsize
        # None: the caller reads slabs.
        if self._plain_fill is None or self.arrangement or self.axis or not 0 < size <= _MOST_AT_ONCE:
            return None
        samples = self._owner.fetch(self._path, self, lambda variable: variable.read_samples(start, stop), size)
        values = np.ma.getdata(samples)
        if values.shape != (stop - start, *self.row_shape) or values.dtype != self.dtype or not values.flags.carray:
            return None
        piece_rows = max(1, _PIECE_BYTES * len(values) // size)
        for begin in range(0, len(values), piece_rows):
            self._restore_missing(values[begin : begin + piece_rows])
        # np.asarray(shard) is recognised as a shard only if its base is the shard. If the shard were a view of an
        # array, `values`, NumPy would set that base to `values`. So the shard is made from a buffer.
        return ShardArray(values.shape, values.dtype, memoryview(values))

    def read_samples(self, start: int, stop: int) -> np.ndarray:
        return np.moveaxis(self._variable[self.make_index(start, stop)], self.axis, 0)

    @contextlib.contextmanager
    def enter_collective(self) -> Iterator[None]:
        self._variable.set_collective(True)  # never unset: the file closes after this collective read
        yield

    def _restore_missing(self, piece: np.ndarray) -> None:
        """Replace the fill value by NaN, in place."""
        # Usually one pass: the fill value exceeds all other values. Comparisons with NaN are false.
        with np.errstate(invalid="ignore"):
            if piece.max(initial=-np.inf) < self._plain_fill or piece.min(initial=np.inf) > self._plain_fill:
                return
        piece[piece == self._plain_fill] = np.nan
