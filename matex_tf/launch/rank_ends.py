"""Find the rank that ended first without a message. MPI often names only its process id, amid other text.

The ranks' records give their process ids. The kernel keeps the order in which processes of this host end, so that one
query at the end suffices.
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
    """Context in which `look_for_ranks` watches the ranks with a record in `folder`; `find_first` returns the first to
    end.
    """

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
        """Watch new ranks. Returns whether ranks may still be missing."""
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
        except OSError:  # the process has ended, or the kernel lacks pidfd_open
            self._missing = False
            return
        self._ranks[process] = one
        self._ended.register(process, select.EPOLLIN)

    def find_first(self) -> Record | None:
        """The rank of this host that ended first; None if no rank has ended, if ranks left on purpose, or if it is
        unknown.
        """
        if any(one.state == rank_records.LEFT for one in rank_records.read_records(self._folder)):
            return None
        return next((self._ranks[process] for process, _ in self._ended.poll(0)), None)


def find_signal(code: int) -> str:
    """The name of the signal for a shell's exit code; "" if the code is not that of a signal."""
    number = code - 128
    if signal.SIGRTMIN < number < signal.SIGRTMAX:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    return signal.Signals(number).name if number in signal.valid_signals() else ""


def describe_end(first: Record, code: int) -> str:
    """A message about the rank that ended first. mpirun's exit code is a shell's for a signal; with MPICH, the signal
    itself.
    """
    is_number = code in _SIGNALS and first.mpi != "Open MPI"
    name = find_signal(code + 128 if is_number else code)
    how = f": {name}" if name else ""
    who = f"rank {first.rank} of {first.size} on {first.host}"
    return f"{who} ended first, without an error message (exit code {code}{how})"
