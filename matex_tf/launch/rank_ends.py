"""Find the rank that ended first without a message. MPI's own text often gives only a process id.

The ranks' records (`runtime.rank_records`) give their process ids. epoll reports the processes of this host in the
order in which they ended. One query at the end of the run therefore suffices.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal

from matex_tf.runtime import rank_records
from matex_tf.runtime.rank_records import Record

# The kernel's number of pidfd_open. Pythons that are built with old headers, such as conda's, have no os.pidfd_open.
_SYS_PIDFD_OPEN = 434
# Signals that end a process at a fault. MPICH's mpirun returns their plain numbers.
_SIGNALS = {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}


class RankEnds:
    """Context in which `look_for_ranks` watches the ranks with a record in `folder`; at the end call `find_first`."""

    def __init__(self, folder: str | os.PathLike[str]):
        self._folder = folder
        self._records: dict[int, Record] = {}  # keyed by the pidfd of the rank's process
        self._may_be_missing = True  # whether ranks of this host may not be watched yet

    def __enter__(self) -> RankEnds:
        self._exits = select.epoll()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()
        for pidfd in self._records:
            os.close(pidfd)

    def look_for_ranks(self) -> bool:
        """Watch new ranks. Returns whether ranks of this host may still be missing."""
        if self._may_be_missing:
            begun_records = [record for record in rank_records.read_records(self._folder) if record.process]
            known_pids, namespace = {record.process for record in self._records.values()}, rank_records.read_namespace()
            for record in begun_records:
                # Equal namespaces: the process runs on this host, and `record.process` is its number here.
                if record.namespace == namespace and record.process not in known_pids:
                    self._watch_rank(record)
            local_size = next((record.local_size for record in self._records.values()), 1)  # 1: none is known yet
            size = max((record.size for record in begun_records), default=1)
            self._may_be_missing = len(self._records) < local_size and len(begun_records) < size
        return self._may_be_missing

    def _watch_rank(self, record: Record) -> None:
        pidfd = ctypes.CDLL(None).syscall(_SYS_PIDFD_OPEN, record.process, 0)
        if pidfd < 0:  # the process has ended, or the kernel lacks the call
            return
        self._records[pidfd] = record
        self._exits.register(pidfd, select.EPOLLIN)

    def find_first(self) -> Record | None:
        """The rank of this host that ended first; None if none has ended or is known, or if ranks left on purpose."""
        if any(record.state == rank_records.LEFT for record in rank_records.read_records(self._folder)):
            return None
        return next((self._records[pidfd] for pidfd, _ in self._exits.poll(0)), None)


def find_signal(code: int) -> str:
    """The name of the signal for an exit code of 128 plus its number; "" for other codes."""
    number = code - 128
    if signal.SIGRTMIN < number < signal.SIGRTMAX:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    return signal.Signals(number).name if number in signal.valid_signals() else ""


def describe_end(first_ended: Record, code: int) -> str:
    """A message about the rank that ended first, for mpirun's exit code `code`.

    After a signal, Open MPI's mpirun returns 128 plus its number, and MPICH's the number itself.
    """
    is_plain_signal = code in _SIGNALS and first_ended.mpi != "Open MPI"
    name = find_signal(code + 128 if is_plain_signal else code)
    signal_text = f": {name}" if name else ""
    rank = f"rank {first_ended.rank} of {first_ended.size} on {first_ended.host}"
    return f"{rank} ended first, without an error message (exit code {code}{signal_text})"
