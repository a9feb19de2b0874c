"""Limits on the time of a wait for other ranks where there is no watchdog yet, or no more."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

from matex_tf import settings

_end_process = os._exit


@contextlib.contextmanager
def watched(rank: int, what: str) -> Iterator[None]:
    """Around what waits for other ranks: says so after MATEX_STALL_SECONDS, ends it after MATEX_ABORT_SECONDS."""
    from matex_tf import output, proof

    chosen, host = settings.current(), socket.gethostname()

    def tell(after: float, ends: bool) -> None:
        output.tell(f"matex_tf: for {after:.0f} s rank {rank} ({host}) {what}\n")
        if ends:
            code = proof.EXIT_STALLED
            output.tell(f"matex_tf: ending the job (exit code {code}) after MATEX_ABORT_SECONDS={after}\n")
            _end_process(code)

    timers = [
        threading.Timer(after, tell, (after, ends))
        for after, ends in ((chosen.stall_seconds, False), (chosen.abort_seconds, True))
        if after
    ]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
