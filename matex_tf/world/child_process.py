"""Child processes, which end with this process even if it is killed, and handlers of signals."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import NoReturn

_PR_SET_PDEATHSIG = 1


def make_python_command(program: str, *arguments: str) -> list[str]:
    """The command of a Python process that runs the text `program` with this process's import path.

    Without that path, the process would search the current folder first.
    """
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{program}", *arguments]


def make_preparation(
    mask: Iterable[int], parent: int, cpus: Iterable[int] = (), death_signal: int = signal.SIGTERM
) -> Callable[[], None]:
    """Make the function that a child runs before its program (`preexec_fn` of `subprocess`).

    Args:
        mask: the signal mask of the child.
        parent: the process that starts the child, in its main thread: the system signals the end of that thread.
        cpus: the affinity of the child; empty: as the parent.
        death_signal: the signal that the child gets when the parent ends.
    """
    library, affinity = ctypes.CDLL(None), set(cpus)

    def prepare_child() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        # The system ends the child when the parent ends, even by a signal.
        library.prctl(_PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != parent:  # it ended before this call
            os._exit(1)
        if affinity:
            os.sched_setaffinity(0, affinity)

    return prepare_child


@contextlib.contextmanager
def handle_signals(numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Context in which `handler` handles the signals `numbers`.

    Ignored signals, as by nohup, and handlers outside Python remain.
    """
    handlers = {number: signal.getsignal(number) for number in numbers}  # None: a handler outside Python
    old_handlers = {
        number: old_handler for number, old_handler in handlers.items() if old_handler not in (signal.SIG_IGN, None)
    }
    try:
        for number in old_handlers:
            signal.signal(number, handler)
        yield
    finally:
        for number, old_handler in old_handlers.items():
            signal.signal(number, old_handler)


def exit_for_signal(number: int, _frame: FrameType | None) -> NoReturn:
    """A handler of signals that lets contexts and `finally` clean up. Raises SystemExit with the shell's exit code."""
    signal.signal(number, signal.SIG_IGN)  # the same signal does not interrupt that
    raise SystemExit(128 + number)
