"""Measures the load of this machine by other processes."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from matex_tf.monitor.machine import parse_busy_seconds


class Others:
    """CPU time of processes that this process has not started, since the creation of this object."""

    def __init__(self) -> None:
        self._began, self._before = time.monotonic(), _count_other_seconds()

    def compute_share(self) -> float:
        """Their share of all cores, 0 to 1. Call it after all child processes have ended, when
        their CPU time is known.
        """
        took = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        return min(max(_count_other_seconds() - self._before, 0.0) / took, 1.0)


def _count_other_seconds() -> float:
    """Core seconds since the boot of the machine that were neither idle nor spent by this process and its children."""
    mine = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return parse_busy_seconds(Path("/proc/stat").read_bytes()) - sum(one.ru_utime + one.ru_stime for one in mine)
