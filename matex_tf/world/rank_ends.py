"""Which rank ended first, without a word: under many an MPI only a number of its process is told, amid other text.

The ranks of this host note their processes in the private folder of `matex run`. The kernel keeps the order in which
they end, so that one look at it is enough when all is over.
"""

from __future__ import annotations

import json
import os
import select
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

LEFT = "left"
"""The word of ranks that have ended together to be started again."""
_NAME = "rank-"
_SIGNALS = {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}


@dataclass(frozen=True)
class RankNote:
    """A rank, its host and its process there, among those that know one another's numbers."""

    rank: int
    size: int
    local_size: int
    host: str
    process: int
    namespace: str
    mpi: str = ""
    """Who has made its MPI, as mpi4py names that."""


def note_rank(rank: int, size: int, local_size: int, host: str, mpi: str = "") -> tuple[str, str]:
    """The name and the text of the note of this process, which is that rank."""
    note = RankNote(rank, size, local_size, host, os.getpid(), name_namespace(), mpi)
    return f"{_NAME}{rank}", json.dumps(asdict(note))


def read_notes(folder: str | os.PathLike[str]) -> list[RankNote]:
    """The ranks whose processes this one can see."""
    notes = [RankNote(**json.loads(path.read_text())) for path in Path(folder).glob(f"{_NAME}*[0-9]")]
    return [note for note in notes if note.namespace == name_namespace()]


def name_namespace() -> str:
    """What processes have in common that know one another's numbers: this start of the host, and a namespace."""
    return Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/pid")


class RankEnds:
    """Within it `look_for_ranks` finds the ranks that note themselves in `folder`; `first` tells who ended first."""

    def __init__(self, folder: str | os.PathLike[str]):
        self._folder = folder
        self._ranks: dict[int, RankNote] = {}
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
            known = set(self._ranks.values())
            for note in read_notes(self._folder):
                if note not in known:
                    self._watch_rank(note)
            self._missing = not self._ranks or len(self._ranks) < next(iter(self._ranks.values())).local_size
        return self._missing

    def _watch_rank(self, note: RankNote) -> None:
        try:
            process = os.pidfd_open(note.process)
        except OSError:  # it has ended, or this kernel has no such thing
            self._missing = False
            return
        self._ranks[process] = note
        self._ended.register(process, select.EPOLLIN)

    def find_first(self) -> RankNote | None:
        """The rank of this host that ended first; None where none has ended, all have left, or it is not known."""
        if Path(self._folder, LEFT).exists():
            return None
        return next((self._ranks[process] for process, _ in self._ended.poll(0)), None)


def find_signal(code: int) -> str:
    """The name of the signal by which a process has ended that a shell gives `code`; empty where it is no signal's."""
    number = code - 128
    if signal.SIGRTMIN < number < signal.SIGRTMAX:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    return signal.Signals(number).name if number in signal.valid_signals() else ""


def describe_end(first: RankNote, code: int) -> str:
    """Who ended first, and how by mpirun's exit code: a shell's for a signal, or with MPICH the signal itself."""
    is_number = code in _SIGNALS and first.mpi != "Open MPI"
    name = find_signal(code + 128 if is_number else code)
    how = f": {name}" if name else ""
    return f"rank {first.rank} of {first.size} on {first.host} ended first, without a word (exit code {code}{how})"
