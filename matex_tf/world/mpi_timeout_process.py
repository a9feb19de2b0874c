"""A process beside a rank that looks at the time while MPI starts or ends there: `mpi_timeout` runs this file.

It imports nothing but the standard library, for it is to start in no time. `main` explains its command line.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

MARK = "stalled"
_TICK = 0.5
# What the rank may survive, this process is to survive, too.
_IGNORED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGPIPE")


def is_stopped(process: int) -> bool:
    """As by SIGSTOP, which reaches a rank alone."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def await_progress(seconds: float, process: int) -> bool:
    """Wait for the word that the process has gone on. The time for which it, or this one, is stopped is not counted."""
    while seconds > 0:
        began = time.monotonic()
        if select.select([0], [], [], min(_TICK, seconds))[0]:
            return True
        if not is_stopped(process):
            seconds -= min(time.monotonic() - began, _TICK)
    return False


def write_line(text: str) -> None:
    """In one piece, and only if that does not wait for a reader."""
    if text and select.select([], [2], [], _TICK)[1]:
        try:
            os.write(2, f"{text}\n".encode())
        except OSError:
            return  # nobody reads any more; what is to be done is done nevertheless


def main(process: int, folder: str, stall: float, told: str, abort: float, ended: str) -> None:
    """What the command line `mpi_timeout_process.py PID FOLDER SECONDS TEXT SECONDS TEXT` says.

    After the first time it writes the first text to standard error, after the second one the second, and kills process
    PID, of which it leaves word in FOLDER; 0 seconds: never, and of an empty text or folder nothing. It ends when
    something comes to its standard input, or when that ends.
    """
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    passed = 0.0
    for after, text, kills in sorted([(stall, told, False), (abort, ended, True)], key=lambda one: (one[0], one[2])):
        if not after:
            continue
        if await_progress(after - passed, process):
            return
        passed = after
        write_line(text)
        if kills:
            try:
                if os.path.isdir(folder):
                    with open(os.path.join(folder, MARK), "w"):
                        pass
            finally:  # also where the disk is full
                os.kill(process, signal.SIGKILL)
            return
    select.select([0], [], [])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4], float(sys.argv[5]), sys.argv[6])
