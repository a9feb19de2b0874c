"""Packages that are imported when an attribute is first read: they are optional, or take seconds to import."""

from __future__ import annotations

import sys
from typing import Any


class _LazyModule:
    """Reads attributes of the module `name`, which it imports for that. Raises ImportError if it is not installed."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        __import__(self._name)  # costs little for an imported module, unlike importlib.import_module
        return getattr(sys.modules[self._name], attribute)


tf: Any = _LazyModule("tensorflow")
MPI: Any = _LazyModule("mpi4py.MPI")  # only after `mpi_calls.start_mpi`: its import would start MPI
pa: Any = _LazyModule("pyarrow")
pc: Any = _LazyModule("pyarrow.compute")
arrow_csv: Any = _LazyModule("pyarrow.csv")
h5py: Any = _LazyModule("h5py")
netCDF4: Any = _LazyModule("netCDF4")
zarr: Any = _LazyModule("zarr")
