"""Standard input: rank 0 reads it, and every rank receives the same text.

The launcher connects the standard input of the run to rank 0; the other ranks would find its end at once. Open MPI's
mpirun passes lines on, but not the end of the input, and repeats parts of large files. So rank 0 reads a file itself.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import stat
from collections.abc import Callable
from typing import Any

from matex_tf import ops, settings
from matex_tf.files import overlay
from matex_tf.runtime import first_rank, objects, watchdog
from matex_tf.runtime.hooks import Table
from matex_tf.world import membership, task_environment, world

_INPUT = 0  # the descriptor of standard input


def _is_read_once() -> bool:
    return settings.get_settings().output != "all"


HOOKS = Table(when=_is_read_once)


@HOOKS.replace("sys", "stdin", "ranks other than 0 find the end of standard input at once")
def _make_shared(original: Any) -> Any:
    encoding, errors = getattr(original, "encoding", None), getattr(original, "errors", None)
    return io.TextIOWrapper(io.BufferedReader(_SharedInput()), encoding, errors)


class _SharedInput(io.RawIOBase):
    """The bytes of standard input, the same on every rank.

    It shows no descriptor of a terminal, because `input` would read from there without calling `readinto`.
    """

    name = "<stdin>"

    def __init__(self) -> None:
        self._process = os.getpid()  # a forked worker has another one
        self._count = 0  # of the bytes that all ranks have received
        self._first_input: int | None = None  # on rank 0, the descriptor that it reads

    def fileno(self) -> int:
        """The descriptor of this rank's own input, for example for a command that reads it."""
        if os.isatty(self._get_input()):
            raise io.UnsupportedOperation("fileno")
        return self._get_input()

    def close(self, _getpid: Callable[[], int] = os.getpid, _close: Callable[[int], None] = os.close) -> None:
        """In a worker process, also close the descriptor, as Python does for its workers: a command that the worker
        starts must not read the input of the run.

        Python may call this method after it has cleared the globals of this module.
        """
        if not self.closed and _getpid() != self._process:
            try:
                _close(0)
            except OSError:
                pass  # it is closed already
        super().close()

    def readable(self) -> bool:
        return True

    @functools.cached_property
    def _is_terminal(self) -> bool:
        is_terminal = os.isatty(_INPUT) or bool(task_environment.is_mpirun_at_terminal(_INPUT))
        return objects.broadcast(is_terminal, "standard input") if overlay.is_reached_by_all() else is_terminal

    def isatty(self) -> bool:
        """Whether the run was started at a terminal: mpirun gives rank 0 a pipe in its place. Collective."""
        return self._is_terminal

    def readinto(self, buffer: Any) -> int:
        if overlay.is_reached_by_all():
            ops.records.mark_between_steps()
            data = first_rank.run_on_first(
                lambda: os.read(self._get_input(), len(buffer)), "standard input", "reading standard input",
                watchdog.SAVING,
            )  # fmt: skip
            self._count += len(data)
        else:
            data = os.read(self._get_input(), len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _get_input(self) -> int:
        """The descriptor of this rank's input."""
        if world.get_world().rank > 0:
            return _INPUT
        if self._first_input is None:
            self._first_input = _open_first_input(self._count)
        return self._first_input


def _open_first_input(offset: int) -> int:
    """The descriptor of rank 0's input: of mpirun's own if that is a file or the null device, else its standard one.

    The file is read from `offset` on, the number of bytes that all ranks have read. Raises LostRankError if the first
    rank was lost, and no file has the rest of its input.
    """
    path = f"/proc/{os.getppid()}/fd/{_INPUT}"
    with contextlib.suppress(OSError):  # another user's process
        if task_environment.is_mpirun(os.getppid()):
            kind = os.stat(path)
            if stat.S_ISREG(kind.st_mode) or os.path.samestat(kind, os.stat(os.devnull)):
                handle = os.open(path, os.O_RDONLY)
                os.lseek(handle, offset, os.SEEK_SET)
                return handle
    if membership.list_origins()[0] > 0:
        raise membership.make_loss_error("the first rank alone had standard input")
    return _INPUT
