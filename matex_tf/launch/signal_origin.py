"""Distinguishes a signal to this process alone from a signal to its process group.

`launch.process` starts mpirun and passes signals on to it, except a signal to the group, which has reached mpirun
already. The system does not tell a process which of the two it received. So `Witness` starts an idle child in the
group, which blocks the signals. A signal to the group stays pending in the child, and `Witness` finds it in the child's
/proc/PID/status.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable

from matex_tf.world import child_process

_PATIENCE = 0.02  # seconds for the kernel to deliver a signal to all processes of a group
_SAME_SIGNAL_SECONDS = 1.0  # seconds; a signal pending in the child for longer is an earlier one


class Witness:
    """Context in which `has_reached_group` classifies the signals `watched`.

    The calling process must block them before, because the child inherits the blocked signals.
    """

    def __init__(self, watched: Iterable[int]):
        self._watched = set(watched)
        self._found_at: dict[int, float] = {}
        """When a signal to the group was found pending in a child (time.monotonic), keyed by the signal's number. The
        call of `has_reached_group` for this signal removes it.
        """

    def __enter__(self) -> Witness:
        self._start_child()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_child()

    def _start_child(self) -> None:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # blocks nothing more, and returns the blocked signals
        prepare = child_process.make_preparation(mask, os.getpid(), death_signal=signal.SIGKILL)
        command = [sys.executable, "-S", "-c", "import time; time.sleep(1e9)"]
        self._child = subprocess.Popen(command, preexec_fn=prepare)

    def _end_child(self) -> None:
        self._child.kill()
        self._child.wait()

    def has_reached_group(self, number: int) -> bool:
        """Whether the signal `number`, which this process has just received, was sent to the group."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            pending_numbers = self._read_pending()
            if pending_numbers:
                # A new child is needed: only a process itself can consume its pending signals.
                self._found_at |= dict.fromkeys(pending_numbers, time.monotonic())
                self._end_child()
                self._start_child()
            found_at = self._found_at.pop(number, None)
            if found_at is not None and found_at > time.monotonic() - _SAME_SIGNAL_SECONDS:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_PATIENCE / 10)

    def _read_pending(self) -> set[int]:
        """The watched signals that are pending in the child."""
        with open(f"/proc/{self._child.pid}/status") as file:
            mask = next(int(line.split()[1], 16) for line in file if line.startswith("ShdPnd:"))
        return {number for number in self._watched if mask >> (number - 1) & 1}
