"""The NetCDF format: classic, 64-bit offset and data, and NetCDF-4, with groups, through netCDF4."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf.readers import library, netcdf_header
from matex_tf.readers.formats import ReaderError, register
from matex_tf.readers.hdf5 import NETCDF_ENDINGS, SIGNATURE
from matex_tf.readers.missing import found
from matex_tf.readers.stack import Names, Stack, Variable, numeric

_SLAB_BYTES = 4 << 20


@register("NETCDF")
class NetCdf(Stack):
    """Variables of one file or of several that follow each other ("run_*.nc", by name).

    `sample` names the dimension of samples (by default a variable's first). Packed variables are unpacked
    (`scale_factor`, `add_offset`); what is marked as missing (`_FillValue`, `missing_value`, `valid_range`) is missing.
    `parallel=True` opens through MPI-IO where netCDF4 was built with it.
    """

    kind = "NetCDF"

    def __init__(
        self,
        path: str | PathLike | Sequence,
        data: Names | None = None,
        labels: Names | None = None,
        sample: str | int | None = None,
        parallel: bool = False,
    ):
        self._parallel = parallel
        if parallel:
            _require_parallel()
        super().__init__(path, data, labels, sample)

    @classmethod
    def recognises(cls, path: Path, head: bytes) -> bool:
        return netcdf_header.is_classic(head) or head.startswith(SIGNATURE) and path.suffix.lower() in NETCDF_ENDINGS

    def open(self, path: Path) -> Any:
        import netCDF4

        with open(path, "rb") as file:
            head = file.read(8)
        if netcdf_header.is_classic(head):
            netcdf_header.check(path)
        elif head != SIGNATURE:
            raise ReaderError(
                f"{path}: wrong magic number: expected a NetCDF file, which begins with 43 44 46 (classic) or "
                f"{SIGNATURE.hex(' ')} (NetCDF-4); found {head.hex(' ') or 'nothing'}"
            )
        if self._parallel:
            from matex_tf import world

            return netCDF4.Dataset(path, parallel=True, comm=world.communicator("readers"))
        return netCDF4.Dataset(path)

    def dtype(self, field: str) -> np.dtype:
        stored = super().dtype(field)
        # Any integer may be missing (there are fill values for all types), and only floats have a NaN.
        return np.dtype(np.float64) if self.missing == "nan" and stored.kind in "iu" else stored

    def variable(self, file: Any, path: Path, name: str) -> Variable | None:
        group = file
        *groups, last = name.strip("/").split("/")
        for inner in groups:
            if inner not in group.groups:
                return None
            group = group.groups[inner]
        return _Variable(self, path, name, group.variables[last]) if last in group.variables else None

    def names(self, file: Any) -> list[str]:
        def walk(group: Any, before: str) -> list[str]:
            inner = [name for key, part in group.groups.items() for name in walk(part, f"{before}{key}/")]
            return [before + name for name in group.variables] + inner

        return walk(file, "")


class _Variable(Variable):
    def __init__(self, owner: NetCdf, path: Path, name: str, variable: Any):
        numeric(path, name, variable.dtype)
        self.name, self.shape = name, tuple(variable.shape)
        self._owner, self._path, self._variable = owner, path, variable
        self.axis = owner.axis(path, name, variable.dimensions, self.shape)
        chunks = variable.chunking()
        self.chunk = int(chunks[self.axis]) if isinstance(chunks, (list, tuple)) else 1
        stored = np.dtype(variable.dtype).newbyteorder("=")
        if stored.kind == "i" and str(getattr(variable, "_Unsigned", "")).lower() == "true":
            stored = np.dtype(f"u{stored.itemsize}")
        scales = [variable.getncattr(key) for key in ("scale_factor", "add_offset") if key in variable.ncattrs()]
        try:
            self.dtype = np.result_type(stored, *[np.asarray(scale).dtype for scale in scales])
        except TypeError:
            self.dtype = np.dtype(object)
        if self.dtype.kind not in "biufc":
            raise ReaderError(f"{path}: expected numbers as scale_factor and add_offset of {name!r}, found {scales}")

    def fill(self, target: np.ndarray, start: int, stop: int) -> None:
        for begin, end in self.slabs(start, stop, _SLAB_BYTES):
            where = self.index(begin, end)
            slab = np.moveaxis(library.call(lambda: self._variable[where]), self.axis, 0)  # noqa: B023
            if len(slab) != end - begin:
                raise ReaderError(
                    f"{self._path}: truncated: expected samples {begin} to {end} of {self.name!r}, found {len(slab)}"
                )
            piece = target[begin - start : end - start]
            piece[...] = np.ma.getdata(slab)
            mask = np.ma.getmask(slab)
            if mask is not np.ma.nomask:
                self._put_missing(piece, mask, begin)

    def _put_missing(self, piece: np.ndarray, mask: np.ndarray, begin: int) -> None:
        if piece.dtype.kind in "fc":
            piece[mask] = np.nan
        elif mask.any():
            how = self._owner.missing
            if how == "error":
                row, *index = (int(number) for number in np.argwhere(mask)[0])
                raise found(f"{self._path}, {self.name!r}{[begin + row, *index]}")
            piece[mask] = how


def _require_parallel() -> None:
    import netCDF4

    if not getattr(netCDF4, "__has_parallel4_support__", False):
        raise ReaderError(
            "parallel=True: expected a netCDF4 built with parallel I/O, found one without (the wheels from PyPI are; "
            "a build against a parallel HDF5 and NetCDF is needed). Without parallel=True each rank opens the file by "
            "itself and reads its own rows, which needs no such build"
        )
    from matex_tf import world

    if not world.is_active():
        raise ReaderError("parallel=True: expected several ranks under mpirun, found one")
