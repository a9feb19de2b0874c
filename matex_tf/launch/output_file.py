"""What ranks print on its way into a file: mpirun says nothing of a disk that is full, and Python alone would."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import stat
import sys

EXIT_UNSAID = 120  # Python's own where what was printed cannot be written at its end
_PIECE = 1 << 16


class Outlet:
    """While in the context, standard output goes through a child that writes it, where it is a file or a device.

    So does standard error where it is no terminal, without the NUL bytes at the ends of what Open MPI says of an abort
    or a lost host: a file that holds one is no text to other programs. Where both lead to the same place, one child
    writes both, in the order in which they come. `correct_exit_code` then gives that of a run of which some was lost.
    """

    def __init__(self) -> None:
        self._copies: dict[str, _Copy] = {}
        self._errors: dict[str, int] = {}

    def __enter__(self) -> Outlet:
        if not _is_terminal(2) and _have_same_place():
            # The script's own output may have such a byte, but hardly at the beginning of a line.
            self._copies["standard output and error"] = _Copy([1, 2], drops=rb"(?<=\n)\0+")
        else:
            if _is_file():
                self._copies["standard output"] = _Copy([1])
            if not _is_terminal(2):
                self._copies["standard error"] = _Copy([2], drops=rb"\0+")
        for copy in self._copies.values():
            copy.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._errors = {name: error for name, copy in self._copies.items() if (error := copy.end()) > 0}

    def correct_exit_code(self, code: int) -> int:
        """`code`, or that of lost output in place of 0."""
        for name, error in self._errors.items():
            code = code or EXIT_UNSAID
            with contextlib.suppress(OSError):  # it may be standard error that cannot be written
                print(
                    f"matex: {name}: {os.strerror(error)}: some of what was printed is lost (exit code {code})",
                    file=sys.stderr,
                    flush=True,
                )
        return code


class _Copy:
    """A child that writes what comes to descriptors to where the first led, but for what matches `drops`."""

    def __init__(self, descriptors: list[int], drops: bytes = rb"(?!)"):
        self._descriptors, self._drops = descriptors, re.compile(drops)

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
                error = _copy_output(source, self._descriptors[0], self._drops, is_over)
            finally:
                os._exit(error)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._before = {descriptor: os.dup(descriptor) for descriptor in self._descriptors}
        for descriptor in self._descriptors:
            os.dup2(target, descriptor)
        for one in (source, target, is_over):
            os.close(one)

    def end(self) -> int:
        """The number of the first error by which it could not be written; 0 if all is."""
        _flush()
        for descriptor, before in self._before.items():
            os.dup2(before, descriptor)
            os.close(before)
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


def _have_same_place() -> bool:
    """Whether standard output and error lead to the same place, in which their order counts."""
    try:
        return os.path.samestat(os.fstat(1), os.fstat(2))
    except OSError:
        return False


def _is_file() -> bool:
    """A terminal, a pipe and the null device are left to mpirun itself."""
    try:
        state = os.fstat(1)
    except OSError:
        return False
    is_device = stat.S_ISCHR(state.st_mode) and not os.isatty(1) and state.st_rdev != os.stat(os.devnull).st_rdev
    return stat.S_ISREG(state.st_mode) or is_device


def _copy_output(source: int, target: int, drops: re.Pattern[bytes], is_over: int) -> int:
    """Copy `source` to `target` without what matches `drops`.

    Gives the number of the first error, after which the rest is thrown away.

    Once `is_over` ends, all that is there is copied. Who still has the other side then, such as an ssh to a host that
    is cut off, is not waited for.
    """
    error, last = 0, b"\n"
    while source in select.select([source, is_over], [], [])[0]:
        piece = os.read(source, _PIECE)
        if not piece:
            break
        piece = drops.sub(b"", last + piece)[1:]
        last = piece[-1:] or last
        while piece and not error:
            try:
                piece = piece[os.write(target, piece) :]
            except OSError as found:
                error = found.errno or 1
    return error
