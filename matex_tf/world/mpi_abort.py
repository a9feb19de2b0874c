"""Ends all ranks of a job by MPI."""

from __future__ import annotations

import ctypes
from typing import Any


def abort_job(code: int) -> None:
    """End all ranks of MPI's world, with the exit code `code`, now."""
    from mpi4py import MPI

    _abort_quietly(MPI, code)
    MPI.COMM_WORLD.Abort(code)


def _abort_quietly(MPI: Any, code: int) -> None:
    """Open MPI's own abort, without the words of `MPI_Abort`, which come with a NUL byte; returns where it is not.

    They only say that a rank has aborted, as mpirun does, too.
    """
    library = ctypes.CDLL(MPI.__file__)  # its symbols are those of the MPI that it is linked to, too
    try:
        abort, communicator = library.ompi_mpi_abort, ctypes.c_char.in_dll(library, "ompi_mpi_comm_world")
    except (AttributeError, ValueError):
        return
    abort(ctypes.byref(communicator), ctypes.c_int(code))
