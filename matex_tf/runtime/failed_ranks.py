"""Rank 0 lets a rank whose error ends the job end it, once rank 0 has completed the output that precedes the error.

Rank 0 prints and writes files, so it may come later to the place at which another rank has failed. The failed rank
tells rank 0 the number of its next collective, and waits. Rank 0 releases it when rank 0 waits at this collective, or
after a time limit. If rank 0 fails, too, it ends the job itself. `watchdog` sends the messages.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from matex_tf import ops
from matex_tf.runtime import open_files, script_frames
from matex_tf.world import terminal, world

_SETTLED_SECONDS = 0.2  # rank 0 has waited for a failed rank for these seconds: longer than most transfers take
_QUIET_SECONDS = 5.0  # after them a message to the user names the failed rank


@dataclass
class _Failure:
    """What rank 0 knows about a rank that is about to end the job for its error."""

    number: int  # of the failed rank's next collective
    error: str  # its error, in few words
    time: float  # when rank 0 got the message (`time.monotonic`)


class FailedRanks:
    """Of rank 0: the failed ranks that wait for it."""

    def __init__(self, seconds: float):
        self._seconds = seconds  # the time limit
        self._failures: dict[int, _Failure] = {}
        self._is_reported = False  # a message to the user names a failed rank

    def __bool__(self) -> bool:
        return bool(self._failures)

    def add(self, rank: int, number: int, error: str) -> None:
        """Note that `rank`, whose next collective has this number, has failed with `error`, in few words."""
        self._failures[rank] = _Failure(number, error, time.monotonic())

    def release(self, read_stack: Callable[[], list[traceback.FrameSummary]]) -> int | None:
        """The rank that may end the job now: the first failed one, if rank 0 waits for it or is late; else None.

        `read_stack`: returns the stack of the main thread of rank 0, whose files it may have to look up on a disk.
        """
        rank, failure = min(self._failures.items(), key=lambda item: (item[1].number, item[1].time))
        waiting, now = ops.read_waiting(), time.monotonic()
        waited = min(waiting.seconds, now - failure.time)  # a wait may include a transfer before the failure
        waits_for_it = waiting.number >= failure.number and waited >= _SETTLED_SECONDS
        is_late = now >= failure.time + self._seconds
        if waits_for_it or is_late or (hasattr(sys, "ps1") and script_frames.is_at_prompt(read_stack())):
            open_files.flush_files()  # the end of the job kills this rank
            del self._failures[rank]
            return rank
        if not self._is_reported and now >= failure.time + _QUIET_SECONDS:
            self._is_reported = True
            me, place = world.get_world(), script_frames.describe_place(read_stack())
            terminal.write_text(
                f"matex_tf: rank {rank} of {me.size} on {me.hosts[rank]} has failed ({failure.error}), and ends the "
                f"job when rank 0 ({me.host}), which is at {place}, has come as far, or after {self._seconds:.0f} s\n"
            )
        return None
