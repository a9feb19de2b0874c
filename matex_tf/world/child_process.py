"""A process that this one starts: it ends with this one, also if this one is killed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable

_PR_SET_PDEATHSIG = 1


def make_question(program: str, *arguments: str) -> list[str]:
    """The command of a Python that answers for this one: the text `program`, which imports what this one would.

    Else it would look into the current folder first.
    """
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{program}", *arguments]


def make_preparation(mask: Iterable[int], parent: int, cpus: Iterable[int] = ()) -> Callable[[], None]:
    """What a child does before it is its program: blocks the signals `mask`, and runs on `cpus` where any are named.

    `parent` is the process that starts it, whose main thread does so: the system takes that thread's end for its.
    """
    library, wanted = ctypes.CDLL(None), set(cpus)

    def prepare_child() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        # Who kills the parent means the child, too.
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)
        if wanted:
            os.sched_setaffinity(0, wanted)

    return prepare_child
