"""Standard input: rank 0 reads it, and every rank receives the same text.

The launcher connects the standard input of the run to rank 0; the other ranks would find its end at once. Open MPI's
mpirun passes lines on, but not the end of the input, and repeats parts of large files. So if the input is a file, rank
0 opens the file itself, through mpirun's descriptor.
"""

from __future__ import annotations

import functools
import io
import os
import stat
import sys
from typing import Any

from matex_tf import ops, settings
from matex_tf.files import overlay
from matex_tf.runtime import first_rank, objects, watchdog
from matex_tf.runtime.hooks import Table
from matex_tf.world import launcher_processes, world

_INPUT = 0  # the descriptor of standard input


HOOKS = Table(when=lambda: settings.get_settings().output != "all")  # "all": each rank reads its own input


@HOOKS.replace("sys", "stdin", "ranks other than 0 find the end of standard input at once")
def _make_shared(original: Any) -> Any:
    """Collective, as this module is installed: `isatty` is not, because a script may call it on one rank only, for
    example if `sys.stdout` is a terminal.
    """
    encoding, errors = getattr(original, "encoding", None), getattr(original, "errors", None)
    is_terminal = os.isatty(_INPUT) or bool(launcher_processes.is_mpirun_at_terminal(_INPUT))
    shared = _SharedInput(objects.broadcast(is_terminal, "whether standard input is a terminal"))
    return io.TextIOWrapper(io.BufferedReader(shared), encoding, errors)


class _SharedInput(io.RawIOBase):
    """The bytes of standard input, the same on every rank.

    It shows no descriptor of a terminal, because `input` would read from there without calling `readinto`.
    """

    name = "<stdin>"
    _is_finalizing = staticmethod(sys.is_finalizing)  # an ending interpreter clears the globals of modules

    def __init__(self, is_terminal: bool):
        """is_terminal: whether the run was started at a terminal: mpirun gives rank 0 a pipe in its place."""
        super().__init__()
        self._is_terminal = is_terminal
        self._process = os.getpid()

    def fileno(self) -> int:
        """The descriptor of this rank's own input, for example for a command that reads it."""
        if os.isatty(_open_input()):
            raise io.UnsupportedOperation("fileno")
        return _open_input()

    def close(self) -> None:
        """In a child of this process, also connect the descriptor to the null device: `multiprocessing` closes
        `sys.stdin` in its children, and a command of the child would wait for ever for the end of mpirun's pipe.
        """
        if not self.closed and not self._is_finalizing() and os.getpid() != self._process:
            with open(os.devnull) as null:
                os.dup2(null.fileno(), _INPUT)
        super().close()

    def readable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._is_terminal

    def readinto(self, buffer: Any) -> int:
        # A collective is possible only if all ranks reach this line of the script.
        data = _read_for_all(len(buffer)) if overlay.is_reached_by_all() else os.read(_open_input(), len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _read_for_all(count: int) -> bytes:
    """At most `count` bytes that rank 0 reads, or its error, on every rank. Collective."""
    ops.records.mark_between_steps()  # the time of reading is no part of a training step
    data: bytes = first_rank.run_on_first(
        lambda: os.read(_open_input(), count), "standard input", "reading standard input", watchdog.SAVING_FACTOR
    )
    return data


@functools.cache
def _open_input() -> int:
    """A descriptor of this rank's input. On rank 0 under mpirun: of mpirun's input, opened again and read from the
    beginning, if that is a file or the null device. Else the standard one.
    """
    path = f"/proc/{os.getppid()}/fd/{_INPUT}"
    if world.get_world().rank > 0 or not launcher_processes.is_mpirun(os.getppid()):
        return _INPUT
    try:
        state = os.stat(path)
        is_file = stat.S_ISREG(state.st_mode) or os.path.samestat(state, os.stat(os.devnull))
        return os.open(path, os.O_RDONLY) if is_file else _INPUT
    except OSError:  # another user's process
        return _INPUT
