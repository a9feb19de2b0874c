"""Limits on the time of a wait for other ranks where there is no watchdog yet, or no more: as MPI starts and ends.

Python's other threads stand still within MPI's own start and end, so another process looks at the time. It waits for
the end of its input, which comes when this process has gone on, or is gone.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
from collections.abc import Iterator

from matex_tf import settings

_WATCHERS = 4  # ranks that watch; others would only say the same
_TIME_IS_UP = 124  # the exit code of `timeout`


@contextlib.contextmanager
def watched(rank: int, size: int, what: str, hint: str = "") -> Iterator[None]:
    """Around what waits for other ranks: says so after MATEX_STALL_SECONDS, ends it after MATEX_ABORT_SECONDS.

    The end is SIGKILL, since no code of this process might run.

    Args:
        rank, size: of this process among those that wait; a size of 0 is one that is not known.
        what: what the rank does, after its name.
        hint: sentences on what that may come from.
    """
    me, now, program = f"rank {rank} ({socket.gethostname()})", 0.0, ""
    chosen = settings.current()
    for after, ends in sorted(((chosen.stall_seconds, False), (chosen.abort_seconds, True))):
        if after > now:
            program += f"timeout {after - now} cat; [ $? -eq {_TIME_IS_UP} ] || exit 0\n"
            now = after
        if after and not ends:
            program += _say(f"for {after:.0f} s {me} {what}. {hint}".rstrip())
        elif after:
            program += _say(f"killing {me}, which {what}: MATEX_ABORT_SECONDS={after:g} are over")
            program += f"kill -KILL {os.getpid()}\n"
    spread = {number * (size - 1) // (_WATCHERS - 1) for number in range(_WATCHERS)} if size else range(_WATCHERS)
    if rank not in spread or not program:
        yield
        return
    watcher = subprocess.Popen(["sh", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        watcher.stdin.close()
        watcher.wait()


def _say(text: str) -> str:
    return f"printf %s {shlex.quote(f'matex_tf: {text}')} >&2; echo >&2\n"
