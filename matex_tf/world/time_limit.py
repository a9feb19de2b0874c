"""Limits waits for other ranks during which no watchdog runs: the start and the end of MPI, and after a loss.

A thread watches the clock, reports a long wait, and at last ends the process. mpi4py would hold Python's global lock
while it starts or finalizes MPI, and the thread would stand still. So `mpi_calls` makes both calls without the lock.
"""

from __future__ import annotations

import contextlib
import os
import posix
import select
import socket
import threading
from collections.abc import Callable, Iterator

from matex_tf import settings
from matex_tf.thread_flag import starts_own
from matex_tf.world import exit_codes, terminal

_REPORTERS = 4  # the number of ranks that report the wait, evenly spaced; others would only repeat it
_TICK = 0.5  # seconds; a longer gap is a time in which the process was stopped, which does not count


def _write_line(text: str) -> None:
    """Write a line to the launcher's error stream, unless that would block."""
    with contextlib.suppress(OSError):  # the reader has closed the stream
        if select.select([], [terminal.get_descriptor()], [], _TICK)[1]:
            os.write(terminal.get_descriptor(), f"{text}\n".encode())


def end_process() -> None:
    """End this process at once; mpirun then ends the others."""
    # The hook on `os._exit` would wait for the other ranks.
    posix._exit(exit_codes.EXIT_STALLED)


@contextlib.contextmanager
def limit_wait(
    rank: int,
    size: int,
    activity: str,
    hint: str = "",
    limits: settings.Settings | None = None,
    end: Callable[[], None] = end_process,
) -> Iterator[None]:
    """Report the wait within the context after MATEX_STALL_SECONDS; end the process after MATEX_ABORT_SECONDS.

    Args:
        rank, size: of this process among the processes that wait; a size of 0 is an unknown one.
        activity: what the rank does, after its name.
        hint: sentences on possible causes.
        limits: the settings with the limits; by default the settings of this process.
        end: ends the process, with `EXIT_STALLED`.
    """
    limits = limits or settings.get_settings()
    stall_seconds, abort_seconds = limits.stall_seconds, limits.abort_seconds
    if not stall_seconds and not abort_seconds:
        yield
        return
    # Of 10 ranks: 0, 3, 6 and 9. Of an unknown number: the first four.
    reporters = {index * (size - 1) // (_REPORTERS - 1) for index in range(_REPORTERS)} if size else range(_REPORTERS)
    rank_name = f"rank {rank} ({socket.gethostname()})"
    stall_text = f"matex_tf: for {stall_seconds:.0f} s {rank_name} {activity}. {hint}".rstrip()
    code = exit_codes.EXIT_STALLED
    end_text = (
        f"matex_tf: {rank_name} {activity}: ending it (exit code {code}) after MATEX_ABORT_SECONDS={abort_seconds:g}"
    )
    has_ended = threading.Event()

    def watch_clock() -> None:
        waited = 0.0
        is_reported = not stall_seconds  # 0 seconds: the wait is never reported
        while not has_ended.wait(_TICK):
            waited += _TICK
            if not is_reported and waited >= stall_seconds:
                is_reported = True
                if rank in reporters:
                    _write_line(stall_text)
            if abort_seconds and waited >= abort_seconds:
                if rank in reporters:
                    _write_line(end_text)
                end()
                return

    thread = threading.Thread(target=watch_clock, name="matex_tf time limit", daemon=True)
    with starts_own.set():
        thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
