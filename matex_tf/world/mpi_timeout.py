"""Limits on the time of a wait for other ranks where there is no watchdog yet, or no more: as MPI starts and ends.

Python's other threads stand still within MPI's own start and end, so another process looks at the time.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

from matex_tf import settings
from matex_tf.world import mpi_timeout_process, terminal

_SPEAKERS = 4  # ranks that say so; others would only say the same
_PATIENCE = 5.0  # seconds for a process that has no more to do but to end


@contextlib.contextmanager
def limit_time(
    rank: int, size: int, what: str, hint: str = "", chosen: settings.Settings | None = None
) -> Iterator[None]:
    """Around what waits for other ranks: says so after MATEX_STALL_SECONDS, ends it after MATEX_ABORT_SECONDS.

    The end is SIGKILL, since no code of this process might run; `matex run` makes `exit_marks.EXIT_STALLED` of it.

    Args:
        rank, size: of this process among those that wait; a size of 0 is one that is not known.
        what: what the rank does, after its name.
        hint: sentences on what that may come from.
        chosen: has the limits; this process's settings unless told.
    """
    chosen = chosen or settings.get_settings()
    if not chosen.stall_seconds and not chosen.abort_seconds:
        yield
        return
    texts = ["", ""]
    if rank in ({number * (size - 1) // (_SPEAKERS - 1) for number in range(_SPEAKERS)} if size else range(_SPEAKERS)):
        me = f"rank {rank} ({socket.gethostname()})"
        texts[0] = f"matex_tf: for {chosen.stall_seconds:.0f} s {me} {what}. {hint}".rstrip()
        texts[1] = f"matex_tf: killing {me}, which {what}: MATEX_ABORT_SECONDS={chosen.abort_seconds:g} are over"
    numbers = (f"{chosen.stall_seconds}", texts[0], f"{chosen.abort_seconds}", texts[1])
    command = [sys.executable, "-I", "-S", mpi_timeout_process.__file__, f"{os.getpid()}", chosen.proof or "", *numbers]
    try:
        watch = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=terminal.get_descriptor(), cwd="/"
        )
    except OSError as error:
        terminal.write_text(f"matex_tf: nobody can look at how long rank {rank} waits for MPI: {error}\n")
        yield
        return
    try:
        yield
    finally:
        # Its input might not end: a process that was forked meanwhile has it open.
        assert watch.stdin is not None
        with contextlib.suppress(BrokenPipeError), watch.stdin:
            watch.stdin.write(b".")
        try:
            watch.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            watch.kill()
            watch.wait()
