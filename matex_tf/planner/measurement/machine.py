"""How busy this machine is with other work while something is measured on it."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from matex_tf.monitor.machine import parse_busy_seconds


class Others:
    """What processes that this one has not started take of this machine's cores, from when it is made."""

    def __init__(self) -> None:
        self._began, self._before = time.monotonic(), _count_other_seconds()

    def compute_share(self) -> float:
        """Of all cores, 0 to 1; what the processes took that this one has started must be known: they have ended."""
        took = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        return min(max(_count_other_seconds() - self._before, 0.0) / took, 1.0)


def _count_other_seconds() -> float:
    """Core seconds since the machine started that were neither idle nor ours."""
    mine = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return parse_busy_seconds(Path("/proc/stat").read_bytes()) - sum(one.ru_utime + one.ru_stime for one in mine)
