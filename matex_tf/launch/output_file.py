"""What ranks print on its way into a file: mpirun says nothing of a disk that is full, and Python alone would."""

from __future__ import annotations

import os
import select
import signal
import stat
import sys

EXIT_UNSAID = 120  # Python's own where what was printed cannot be written at its end
_PIECE = 1 << 16


class Outlet:
    """While in the context, standard output goes through a child that writes it, where it is a file or a device.

    `correct_exit_code` then gives that of a run of which output was lost. So does standard error where it is no
    terminal, without the NUL bytes at the ends of what Open MPI says of an abort or a lost host: a file that holds one
    is no text to other programs.
    """

    def __init__(self) -> None:
        self._output, self._errors = _Copy(1), _Copy(2, drops=b"\0")
        self._error = 0

    def __enter__(self) -> Outlet:
        if _is_file():
            self._output.start()
        if not _is_terminal(2):
            self._errors.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._error = self._output.end()
        self._errors.end()

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


class _Copy:
    """A child that writes what comes to a descriptor to where that led; `drops` are bytes that it leaves out."""

    def __init__(self, descriptor: int, drops: bytes = b""):
        self._descriptor, self._drops, self._child = descriptor, drops, 0

    def start(self) -> None:
        _flush()
        source, target = os.pipe()
        is_over, self._over = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._child = os.fork()
        if self._child == 0:
            error = 1
            try:
                # The other copy's, among others: that one is to see the end of its own.
                os.closerange(3, min(source, is_over))
                os.closerange(min(source, is_over) + 1, max(source, is_over))
                os.closerange(max(source, is_over) + 1, os.sysconf("SC_OPEN_MAX"))
                error = _copy_output(source, self._descriptor, self._drops, is_over)
            finally:
                os._exit(error)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._before = os.dup(self._descriptor)
        os.dup2(target, self._descriptor)
        for one in (source, target, is_over):
            os.close(one)

    def end(self) -> int:
        """The number of the first error by which it could not be written; 0 if all is."""
        if not self._child:
            return 0
        _flush()
        os.dup2(self._before, self._descriptor)
        os.close(self._before)
        os.close(self._over)
        return os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _is_terminal(descriptor: int) -> bool:
    """A terminal shows no NUL byte; nor does what is closed."""
    try:
        return os.isatty(descriptor) or not os.fstat(descriptor)
    except OSError:
        return True


def _is_file() -> bool:
    """A terminal, a pipe and the null device are left to mpirun itself."""
    try:
        state = os.fstat(1)
    except OSError:
        return False
    is_device = stat.S_ISCHR(state.st_mode) and not os.isatty(1) and state.st_rdev != os.stat(os.devnull).st_rdev
    return stat.S_ISREG(state.st_mode) or is_device


def _copy_output(source: int, target: int, drops: bytes, is_over: int) -> int:
    """Copy `source` to `target`; the number of the first error, after which the rest is thrown away.

    Once `is_over` ends, all that is there is copied. Who still has the other side then, such as an ssh to a host that
    is cut off, is not waited for.
    """
    error = 0
    while source in select.select([source, is_over], [], [])[0]:
        piece = os.read(source, _PIECE)
        if not piece:
            break
        piece = piece.translate(None, drops)
        while piece and not error:
            try:
                piece = piece[os.write(target, piece) :]
            except OSError as found:
                error = found.errno or 1
    return error
