"""What the input of training costs a rank: seconds of a core and bytes of a batch, taken without a step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_MOST, _SECONDS = 8, 3.0
"""Batches that are taken, and how long at most."""
_LOOK, _IDLE, _LOOKS = 0.01, 0.1, 2
"""Seconds between two looks at a process, and the share of a core below which it is idle in so many of them."""


@dataclass(frozen=True)
class InputCost:
    """What a batch costs this rank: seconds of a core, and bytes that it reads by system calls."""

    seconds: float
    bytes: float


def measure_input(take: Callable[[], bool]) -> InputCost | None:
    """The mean of the next batches, each with what is worked on ahead of it; None if there are none.

    A pipeline that works ahead is full whenever this process is idle. So from one idle moment to the next, around the
    taking of one batch, it works on one batch, whatever it holds.

    Args:
        take: takes the next batch; False at the end of the data.
    """
    _await_idle()
    until, cpu, read, count = time.monotonic() + _SECONDS, time.process_time(), count_read_bytes(), 0
    while count < _MOST and time.monotonic() < until and take():
        count += 1
        _await_idle()
    if not count:
        return None
    return InputCost((time.process_time() - cpu) / count, (count_read_bytes() - read) / count)


def _await_idle() -> None:
    """Wait until this process computes nothing, but not for long."""
    until, idle = time.monotonic() + _SECONDS, 0
    while idle < _LOOKS and time.monotonic() < until:
        cpu, began = time.process_time(), time.monotonic()
        time.sleep(_LOOK)
        is_idle = time.process_time() - cpu < _IDLE * (time.monotonic() - began)
        idle = idle + 1 if is_idle else 0


def count_read_bytes() -> int:
    """Bytes that this process has read by system calls; 0 where the system does not count them."""
    try:
        return parse_read_bytes(Path("/proc/self/io").read_bytes())
    except OSError:
        return 0


def parse_read_bytes(text: bytes) -> int:
    """Bytes that a process has read by system calls, by what its /proc/PID/io holds: `rchar`.

    These are of files, whether storage or the page cache has them, which `read_bytes` leaves out; also of pipes, and of
    sockets where MPI reads these as files. Not of files that are mapped into memory.
    """
    return int(text.split(None, 2)[1])
