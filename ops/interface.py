"""The engine's C interface: the types of its functions, which src/engine/abi.cc describes, and loading the library."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_uint64, c_void_p
from pathlib import Path

# The main library of an MPI. Others, such as libmpi_cxx and libmpi_mpifh, do not match.
_MPI_LIBRARY = re.compile(r"libmpi(ch)?(_ibm|_cray|_intel|_gnu_\d+)?\.so")
# The count of tensors; their names, types, numbers of dimensions, dimensions and variables.
_TENSORS = (c_int, POINTER(c_char_p), POINTER(c_int), POINTER(c_int), POINTER(c_int64), POINTER(c_int64))
# For each function: the type of its result, and those of its arguments.
_FUNCTIONS = {
    "matex_last_error": (c_char_p, []),
    "matex_mpi_version": (c_char_p, []),
    "matex_start": (c_int, [*[c_int] * 5, c_char_p, c_int, c_int64, c_int64, c_int, c_int, c_double, c_int]),
    "matex_start_again": (c_int, [*[c_int] * 6, c_int64, POINTER(c_int64)]),
    "matex_phantom": (None, [c_int]),
    "matex_rendezvous": (c_int, [c_int, c_uint64, c_char_p, c_int64, c_int64, c_int]),
    "matex_failure": (c_int, []),
    "matex_cause": (c_int, [c_char_p]),
    "matex_count": (c_int64, [c_int]),
    "matex_rows": (c_int64, []),
    "matex_seconds": (c_double, [c_int]),
    "matex_waited": (None, [POINTER(c_double), POINTER(c_double)]),
    "matex_blocked_seconds": (c_double, []),
    "matex_waiting": (c_int, [POINTER(c_double), POINTER(c_int64), c_char_p, c_int]),
    "matex_wait": (None, [c_char_p]),
    "matex_go_on": (None, []),
    "matex_hash": (c_uint64, [c_void_p, c_int64, c_uint64]),
    "matex_buckets": (
        c_int,
        [c_int, POINTER(c_double), POINTER(c_double), c_double, c_double, POINTER(c_int), POINTER(c_double)],
    ),
    "matex_expect": (None, [POINTER(c_int64), c_int]),
    "matex_record": (None, [c_int, c_int64]),
    "matex_between_steps": (None, []),
    "matex_now": (c_int64, []),
    "matex_events": (c_int64, [c_void_p, c_int64, POINTER(c_int64)]),
    "matex_labels": (c_int64, [c_char_p, c_int64]),
    "matex_totals": (c_int, [c_int, POINTER(c_int64), c_char_p, c_int]),
    "matex_link": (c_int, [c_int, POINTER(c_double), POINTER(c_double)]),
    "matex_last_link": (c_int, [POINTER(c_double), POINTER(c_double), POINTER(c_int)]),
    "matex_time_sums": (c_int, [c_int, c_int64, c_int, POINTER(c_double), POINTER(c_double)]),
    "matex_reduce": (c_int, [*_TENSORS, POINTER(c_void_p), POINTER(c_void_p), c_double, c_int, c_char_p]),
    "matex_store_make": (c_int, [c_int64, c_int64, c_int64, POINTER(c_int)]),
    "matex_store_drop": (None, []),
    "matex_drop_homes": (None, [c_int64]),
    "matex_store_deal": (None, [c_int64, c_int64]),
    "matex_store_begin": (c_int, [c_int64, c_double, POINTER(c_int64), POINTER(c_int)]),
    "matex_store_end": (c_int64, [c_int]),
    "matex_store_leave": (None, []),
    "matex_store_stop": (None, []),
    "matex_store_trained": (c_int64, []),
    "matex_store_lose": (c_int, [c_int, POINTER(c_int64)]),
    "matex_store_lost": (c_int, [c_int]),
    "matex_store_version": (c_int, [c_int]),
    "matex_store_data": (c_void_p, []),
    "matex_forget": (None, []),
    "matex_watch_sender": (c_int, [c_int, POINTER(c_int), c_int]),
    "matex_came_from_launchers": (c_int, [c_int]),
    "matex_residuals": (c_int64, []),
}


def load_library(path: str | Path) -> ctypes.CDLL:
    """Load the library at `path` and set the types of its functions. Calls release Python's global interpreter lock.

    Raises:
        OSError: the library cannot be loaded.
    """
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def get_last_error(engine: ctypes.CDLL) -> str:
    """The message of this thread's last failed call."""
    return engine.matex_last_error().decode(errors="replace")


def list_mapped_mpi_libraries() -> list[str]:
    """The files of all MPI libraries in this process."""
    if not sys.platform.startswith("linux"):
        return []
    with open("/proc/self/maps") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if line.count("/")}
    return sorted({os.path.realpath(path) for path in paths if _MPI_LIBRARY.match(os.path.basename(path))})
