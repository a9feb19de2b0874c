"""Starts, finalizes and aborts MPI through ctypes, which releases Python's global lock.

mpi4py's own calls hold the lock, so no other Python thread would run. Through ctypes, the thread of `time_limit` can
report a call that takes too long, and end the process.
"""

from __future__ import annotations

import ctypes
import sys

from matex_tf.lazy import MPI


def start_mpi() -> None:
    """Start MPI. Collective.

    Raises:
        ImportError, RuntimeError: mpi4py or MPI cannot be loaded or started.
    """
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    if not MPI.Is_initialized():
        # The script may have set the level of threads in mpi4py.rc. `world` checks the level that MPI provides.
        level = "single" if mpi4py.rc.threads in (False, "no") else mpi4py.rc.thread_level
        thread_level = ctypes.c_int(getattr(MPI, f"THREAD_{level.upper()}"))
        if error := _load_library().MPI_Init_thread(None, None, thread_level, ctypes.byref(ctypes.c_int())):
            raise RuntimeError(f"MPI_Init_thread has failed with error {error}")
        for communicator in (MPI.COMM_WORLD, MPI.COMM_SELF):
            communicator.Set_errhandler(MPI.ERRORS_RETURN)


def end_mpi() -> None:
    """Call MPI_Finalize. Collective."""
    _load_library().MPI_Finalize()


def abort_job(code: int) -> None:
    """Abort all ranks through MPI with the exit code `code`.

    MPI_Abort of Open MPI prints a message with a NUL byte, and mpirun prints the same text again. So this calls the
    internal function by which MPI_Abort ends the job, and which prints nothing.
    """
    library = _load_library()
    if MPI.get_vendor()[0] == "Open MPI" and MPI.get_vendor()[1] < (6,) and hasattr(library, "ompi_mpi_abort"):
        communicator = ctypes.c_char.in_dll(library, "ompi_mpi_comm_world")
        library.ompi_mpi_abort(ctypes.byref(communicator), ctypes.c_int(code))
    # Not by the property of `script_knowledge`, which detects reads by the script.
    vars(sys.modules["mpi4py.MPI"])["COMM_WORLD"].Abort(code)


def _load_library() -> ctypes.CDLL:
    """mpi4py's extension; its symbols include those of the MPI that it is linked to."""
    return ctypes.CDLL(MPI.__file__)
