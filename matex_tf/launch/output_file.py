"""What ranks print on its way into a file: mpirun says nothing of a disk that is full, and Python alone would."""

from __future__ import annotations

import os
import signal
import stat
import sys

EXIT_UNSAID = 120  # Python's own where what was printed cannot be written at its end
_PIECE = 1 << 16


class Outlet:
    """While in the context, standard output goes through a child that writes it, where it is a file or a device.

    `correct_exit_code` then gives that of a run of which output was lost.
    """

    def __init__(self) -> None:
        self._child = 0
        self._error = 0

    def __enter__(self) -> Outlet:
        if _is_file():
            sys.stdout.flush()
            self._start_copying()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._child:
            return
        sys.stdout.flush()
        os.dup2(self._before, 1)
        os.close(self._before)
        self._error = os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])

    def correct_exit_code(self, code: int) -> int:
        """`code`, or that of lost output in place of 0."""
        if self._error <= 0:
            return code
        code = code or EXIT_UNSAID
        print(
            f"matex: standard output: {os.strerror(self._error)}: some of what was printed is lost (exit code {code})",
            file=sys.stderr,
        )
        return code

    def _start_copying(self) -> None:
        source, target = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._child = os.fork()
        if self._child == 0:
            error = 1
            try:
                os.close(target)
                error = _copy_output(source)
            finally:
                os._exit(error)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._before = os.dup(1)
        os.dup2(target, 1)
        os.close(source)
        os.close(target)


def _is_file() -> bool:
    """A terminal, a pipe and the null device are left to mpirun itself."""
    try:
        state = os.fstat(1)
    except OSError:
        return False
    is_device = stat.S_ISCHR(state.st_mode) and not os.isatty(1) and state.st_rdev != os.stat(os.devnull).st_rdev
    return stat.S_ISREG(state.st_mode) or is_device


def _copy_output(source: int) -> int:
    """Copy all of `source` to standard output; the number of the first error, after which the rest is thrown away."""
    error = 0
    while piece := os.read(source, _PIECE):
        while piece and not error:
            try:
                piece = piece[os.write(1, piece) :]
            except OSError as found:
                error = found.errno or 1
    return error
