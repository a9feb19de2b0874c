"""Measures the load of this machine by other processes."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from matex_tf.monitor.machine import parse_busy_seconds


class Others:
    """The CPU time, since the creation of this object, of processes that this process has not started."""

    def __init__(self) -> None:
        self._created_at, self._seconds_before = time.monotonic(), _count_other_seconds()

    def compute_share(self) -> float:
        """The fraction of all cores that they used. Call it after all child processes have ended, when their CPU time
        is known.
        """
        core_seconds = (time.monotonic() - self._created_at) * (os.cpu_count() or 1)
        return min(max(_count_other_seconds() - self._seconds_before, 0.0) / core_seconds, 1.0)


def _count_other_seconds() -> float:
    """Core seconds since the boot of the machine that were neither idle nor spent by this process and its children."""
    own_usage = [resource.getrusage(target) for target in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own_seconds = sum(usage.ru_utime + usage.ru_stime for usage in own_usage)
    return parse_busy_seconds(Path("/proc/stat").read_bytes()) - own_seconds
