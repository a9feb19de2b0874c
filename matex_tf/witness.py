"""Whether a signal was sent to this process alone or to its whole process group, which the system does not say.

A child that does nothing else stands in the group: what it gets, too, the others have.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
import time
from collections.abc import Iterable

_PR_SET_PDEATHSIG = 1
_NOTE = struct.Struct("id")  # a signal's number, and when it came
_PATIENCE = 0.3  # seconds for the child to come to its turn
_TOGETHER = 1.0  # and between what was sent at once


class Witness:
    """While in the context, `saw` tells of the signals `watched`, which are blocked in this process, too."""

    def __init__(self, watched: Iterable[int]):
        self._watched = set(watched)

    def __enter__(self) -> Witness:
        self._notes, write = os.pipe()
        parent = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            try:
                os.close(self._notes)
                self._look(parent, write)
            finally:
                os._exit(0)
        os.close(write)
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)
        os.close(self._notes)

    def _look(self, parent: int, write: int) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        while os.getppid() == parent:
            number = signal.sigwaitinfo(self._watched).si_signo
            os.write(write, _NOTE.pack(number, time.monotonic()))

    def saw(self, number: int) -> bool:
        """Whether the signal `number` that has just come here has come to the group."""
        now = time.monotonic()
        while select.select([self._notes], [], [], max(now + _PATIENCE - time.monotonic(), 0))[0]:
            note = os.read(self._notes, _NOTE.size)
            if len(note) < _NOTE.size:
                return False  # the child is gone
            found, when = _NOTE.unpack(note)
            if found == number and when > now - _TOGETHER:
                return True
        return False
