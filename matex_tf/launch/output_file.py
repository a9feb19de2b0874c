"""Writing the output of ranks to a file, with an error if the disk is full.

mpirun ignores a full disk, and would end with exit code 0 although output is lost; a script alone would fail. So
`launch.cli` runs mpirun within an `Outlet`: mpirun writes into pipes. Child processes, which execute this file, copy
the pipes to the files and report write errors.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence

EXIT_OUTPUT_LOST = 120  # Python's own exit code if it cannot write its output at exit
_CHUNK_BYTES = 1 << 16


class Outlet:
    """Context in which a child process writes standard output, if that is a file or a device.

    Another child writes standard error if it is no terminal. The child removes the NUL bytes that Open MPI appends to
    its messages about an abort or a lost host, because other programs take a file with NUL bytes for binary data. If
    both streams lead to the same file, one child writes both in order. After lost output, `correct_exit_code` returns
    a failure. A stream whose child does not start stays as it is.
    """

    def __init__(self) -> None:
        self._copies: dict[str, _Copy] = {}  # by the name of the streams to copy, for messages
        self._errors: dict[str, int] = {}  # by the same names, the errno of the first write error

    def __enter__(self) -> Outlet:
        output_status, error_status = _read_status(1), _read_status(2)
        should_copy_errors = error_status is not None and not os.isatty(2)  # a terminal does not show NUL bytes
        if output_status is not None and should_copy_errors and os.path.sameopenfile(1, 2):
            # The relative order of the streams matters. The script's own output may contain NUL bytes, but hardly at
            # the beginning of a line.
            self._copies["standard output and error"] = _Copy([1, 2], drops=r"(?<=\n)\0+")
        else:
            if output_status is not None and _is_file_or_device(output_status):
                self._copies["standard output"] = _Copy([1])
            if should_copy_errors:
                self._copies["standard error"] = _Copy([2], drops=r"\0+")
        for name, copy in list(self._copies.items()):
            if not copy.start():
                del self._copies[name]
                message = f"{name}: the process that copies it did not start: a full disk will not be reported"
                print(f"matex: {message}", file=sys.stderr, flush=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._errors = {name: error for name, copy in self._copies.items() if (error := copy.end()) > 0}

    def correct_exit_code(self, code: int) -> int:
        """Report lost output. Returns `code`, or `EXIT_OUTPUT_LOST` instead of 0."""
        for name, error in self._errors.items():
            code = code or EXIT_OUTPUT_LOST
            with contextlib.suppress(OSError):  # standard error itself may be unwritable
                message = f"{name}: {os.strerror(error)}: some output is lost (exit code {code})"
                print(f"matex: {message}", file=sys.stderr, flush=True)
        return code


class _Copy:
    """A child process that copies the output of `descriptors` to the file of the first descriptor.

    The child removes matches of the pattern `drops`; the default matches nothing. Over a connection it sends one byte
    when it is ready. To stop the child, this process closes the connection.
    """

    def __init__(self, descriptors: list[int], drops: str = "(?!)"):
        self._descriptors, self._drops = descriptors, drops

    def start(self) -> bool:
        """Start the child, and replace `descriptors` by the pipe that it reads. False: it did not start."""
        reader, writer = os.pipe()
        self._connection, child_end = socket.socketpair()
        child_descriptor = child_end.fileno()
        # -sS: the standard library only.
        command = [sys.executable, "-sS", __file__, str(child_descriptor), self._drops]
        # The child inherits the blocked signals: it ends with its input only.
        mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._child = subprocess.Popen(
                command, stdin=reader, stdout=self._descriptors[0], pass_fds=[child_descriptor]
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask_before)
            child_end.close()
            os.close(reader)
        is_ready = bool(self._connection.recv(1))  # b"" at the end of the child
        if is_ready:
            self._redirection = contextlib.ExitStack()
            self._redirection.enter_context(redirect(self._descriptors, writer))
        else:
            self._connection.close()
            self._child.wait()
        os.close(writer)
        return is_ready

    def end(self) -> int:
        """Stop copying. Returns the errno of the first write error; 0 if all output was written.

        A negative number is that of a signal that has ended the child.
        """
        self._redirection.close()
        self._connection.close()
        return self._child.wait()


@contextlib.contextmanager
def redirect(descriptors: Sequence[int], target: int) -> Iterator[None]:
    """Context in which writes to `descriptors` go to the file of the descriptor `target`."""
    _flush()
    originals = {descriptor: os.dup(descriptor) for descriptor in descriptors}
    for descriptor in descriptors:
        os.dup2(target, descriptor)
    try:
        yield
    finally:
        _flush()
        for descriptor, original in originals.items():
            os.dup2(original, descriptor)
            os.close(original)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _read_status(descriptor: int) -> os.stat_result | None:
    """The file status of a descriptor; None if it is closed."""
    with contextlib.suppress(OSError):
        return os.fstat(descriptor)
    return None


def _is_file_or_device(status: os.stat_result) -> bool:
    """Whether standard output is a file or a device. Terminals, pipes and the null device are left to mpirun."""
    is_device = stat.S_ISCHR(status.st_mode) and not os.isatty(1) and status.st_rdev != os.stat(os.devnull).st_rdev
    return stat.S_ISREG(status.st_mode) or is_device


def _copy_output(source: int, target: int, drops: re.Pattern[bytes], connection: int) -> int:
    """Copy `source` to `target` without matches of `drops`. Returns the errno of the first write error, or 0.

    After an error, further output is read and discarded, so that the writers do not block. When the other end of
    `connection` closes, only the available output is copied: another writer, such as an ssh to a disconnected host,
    may keep the pipe open.
    """
    os.write(connection, b"r")  # ready
    error, previous_byte = 0, b"\n"
    while source in select.select([source, connection], [], [])[0]:
        chunk = os.read(source, _CHUNK_BYTES)
        if not chunk:
            break
        # A pattern that looks behind a match (`(?<=\n)`) needs the last byte of the chunk before; [1:] removes it.
        chunk = drops.sub(b"", previous_byte + chunk)[1:]
        previous_byte = chunk[-1:] or previous_byte
        while chunk and not error:
            try:
                chunk = chunk[os.write(target, chunk) :]
            except BlockingIOError:  # another process has made the file non-blocking
                select.select([], [target], [])
            except OSError as write_error:
                error = write_error.errno or 1
    return error


if __name__ == "__main__":
    sys.exit(_copy_output(0, 1, re.compile(sys.argv[2].encode()), connection=int(sys.argv[1])))
