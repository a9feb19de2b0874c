"""Which rank ended first, without a word: under many an MPI only a number of its process is told, amid other text.

The ranks of this host note their processes in the private folder of `matex run`. The kernel keeps the order in which
they end, so that one look at it is enough when all is over.
"""

from __future__ import annotations

import os
import select
import signal
from types import TracebackType

from matex_tf.runtime import exit_marks

_SIGNALS = {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}


class RankEnds:
    """While in the context, `look` finds the ranks that note themselves in `folder`; `first` tells who ended first."""

    def __init__(self, folder: str | os.PathLike[str]):
        self._folder = folder
        self._ranks: dict[int, exit_marks.RankNote] = {}
        self._missing = True

    def __enter__(self) -> RankEnds:
        self._ended = select.epoll()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._ended.close()
        for process in self._ranks:
            os.close(process)

    def look(self) -> bool:
        """Whether ranks may be missing yet."""
        if self._missing:
            known = set(self._ranks.values())
            for note in exit_marks.rank_notes(self._folder):
                if note not in known:
                    self._watch(note)
            self._missing = not self._ranks or len(self._ranks) < next(iter(self._ranks.values())).local_size
        return self._missing

    def _watch(self, note: exit_marks.RankNote) -> None:
        try:
            process = os.pidfd_open(note.process)
        except OSError:  # it has ended, or this kernel has no such thing
            self._missing = False
            return
        self._ranks[process] = note
        self._ended.register(process, select.EPOLLIN)

    def first(self) -> exit_marks.RankNote | None:
        """The rank of this host that ended first; None where none has ended or it is not known."""
        return next((self._ranks[process] for process, _ in self._ended.poll(0)), None)


def describe_end(first: exit_marks.RankNote, code: int) -> str:
    """Who ended first, and how by mpirun's exit code: a shell's for a signal, or with MPICH the signal itself."""
    number = code - 128 if code > 128 else code
    how = f": {signal.Signals(number).name}" if number in _SIGNALS or code > 128 else ""
    return f"rank {first.rank} of {first.size} on {first.host} ended first, without a word (exit code {code}{how})"
