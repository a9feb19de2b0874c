"""Which rank ended first, without a word: many an MPI names only its process, amid other text.

The records of the ranks name their processes. The kernel keeps the order in which those of this host end, so that one
look at it is enough when all is over.
"""

from __future__ import annotations

import os
import select
import signal
from types import TracebackType

from matex_tf.runtime import rank_records
from matex_tf.runtime.rank_records import Record

_SIGNALS = {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}


class RankEnds:
    """In its context `look_for_ranks` finds the ranks with a record in `folder`; `find_first` gives the first end."""

    def __init__(self, folder: str | os.PathLike[str]):
        self._folder = folder
        self._ranks: dict[int, Record] = {}
        self._missing = True

    def __enter__(self) -> RankEnds:
        self._ended = select.epoll()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._ended.close()
        for process in self._ranks:
            os.close(process)

    def look_for_ranks(self) -> bool:
        """Whether ranks may be missing yet."""
        if self._missing:
            known = {one.process for one in self._ranks.values()}
            for one in rank_records.read_records(self._folder):
                if one.namespace == rank_records.read_namespace() and one.process not in known:
                    self._watch_rank(one)
            self._missing = not self._ranks or len(self._ranks) < next(iter(self._ranks.values())).local_size
        return self._missing

    def _watch_rank(self, one: Record) -> None:
        try:
            process = os.pidfd_open(one.process)
        except OSError:  # it has ended, or this kernel has no such thing
            self._missing = False
            return
        self._ranks[process] = one
        self._ended.register(process, select.EPOLLIN)

    def find_first(self) -> Record | None:
        """The rank of this host that ended first; None where none has ended, all have left, or it is not known."""
        if any(one.state == rank_records.LEFT for one in rank_records.read_records(self._folder)):
            return None
        return next((self._ranks[process] for process, _ in self._ended.poll(0)), None)


def find_signal(code: int) -> str:
    """The name of the signal by which a process has ended that a shell gives `code`; empty where it is no signal's."""
    number = code - 128
    if signal.SIGRTMIN < number < signal.SIGRTMAX:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    return signal.Signals(number).name if number in signal.valid_signals() else ""


def describe_end(first: Record, code: int) -> str:
    """Who ended first, and how by mpirun's exit code: a shell's for a signal, or with MPICH the signal itself."""
    is_number = code in _SIGNALS and first.mpi != "Open MPI"
    name = find_signal(code + 128 if is_number else code)
    how = f": {name}" if name else ""
    return f"rank {first.rank} of {first.size} on {first.host} ended first, without a word (exit code {code}{how})"
