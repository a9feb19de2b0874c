"""Measures the cost of the input of training for a rank: core seconds and bytes of a batch, without a step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_MOST, _SECONDS = 8, 3.0
"""Limits of the number of batches and of the seconds."""
_LOOK, _IDLE, _LOOKS = 0.01, 0.1, 2
"""Seconds between two samples of CPU time; the process is idle below this share of a core, in this many samples."""


@dataclass(frozen=True)
class InputCost:
    """The cost of a batch for this rank: core seconds, and bytes read by system calls."""

    seconds: float
    bytes: float


def measure_input(take: Callable[[], bool]) -> InputCost | None:
    """The mean cost of the next batches, including prefetching; None if there are none.

    A pipeline with prefetching is full whenever this process is idle. From one idle moment to the next, with one batch
    taken between them, it processes exactly one batch.

    Args:
        take: takes the next batch; returns False at the end of the data.
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
    """Wait until this process is idle, within a time limit."""
    until, idle = time.monotonic() + _SECONDS, 0
    while idle < _LOOKS and time.monotonic() < until:
        cpu, began = time.process_time(), time.monotonic()
        time.sleep(_LOOK)
        is_idle = time.process_time() - cpu < _IDLE * (time.monotonic() - began)
        idle = idle + 1 if is_idle else 0


def count_read_bytes() -> int:
    """Bytes that this process has read by system calls; 0 if the system does not count them."""
    try:
        return parse_read_bytes(Path("/proc/self/io").read_bytes())
    except OSError:
        return 0


def parse_read_bytes(text: bytes) -> int:
    """Parse `rchar` from /proc/PID/io: bytes that a process has read by system calls.

    Includes reads from the page cache, which `read_bytes` excludes; also pipes, and sockets if MPI reads them as files.
    Excludes memory-mapped files.
    """
    return int(text.split(None, 2)[1])
