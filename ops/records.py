"""What the engine records of this process: events for a timeline, totals for a profile (`sequence/trace.h`)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from matex_tf import errors

from . import interface
from .library import get_library

TOTALS, EVENTS, GRADIENTS = 1, 2, 3
"""What to record: totals only, or events, too, or also those of single gradients."""

ACTIVITIES = (
    "update",
    "collective",
    "message",
    "meet",
    "bucket",
    "copy in",
    "transfer",
    "copy out",
    "own gradients",
    "choice",
    "gap",
    "between steps",
    "exposed",
    "announcement",
    "entry",
    "ready",
    "rows",
    "pull",
    "allgather",
    "broadcast",
)
"""By the engine's numbers of them."""

LANES = ("script", "communication", "new weights")

EVENT = np.dtype(
    [
        ("start", np.int64),
        ("duration", np.int64),
        ("bytes", np.int64),
        ("label", np.int32),
        ("activity", np.int16),
        ("lane", np.int16),
    ]
)

_NUMBERS = (
    "updates bytes transfers transfer copy exposed exposed_wait steps compute meet collectives "
    "pulled pull"  # as in struct Totals
).split()


_recording = 0


@dataclass
class Totals:
    """Of the updates of one place of the program, without its first ones; times in nanoseconds.

    `updates` of them sent `bytes` in `transfers` that took `transfer`, and copied for `copy`; of both, `exposed` was
    hidden by no computation; overlapped ones waited `exposed_wait` for other ranks with all their gradients there.
    `steps` of them ended a stretch, since any update before, that is a training step: `compute` between collectives,
    `meet` waiting for other ranks where these begin, `collectives` in those other than updates. `pulled` bytes of
    new weights came while the next step computed, and took `pull`.
    """

    place: str
    updates: int
    bytes: int
    transfers: int
    transfer: int
    copy: int
    exposed: int
    exposed_wait: int
    steps: int
    compute: int
    meet: int
    collectives: int
    pulled: int = 0
    pull: int = 0


def set_recording(how: int, capacity: int = 0) -> None:
    """From now on, record totals (1) or events, too (2, 3), of which the last `capacity` are kept; or no more (0)."""
    global _recording
    _recording = how
    get_library().c.matex_record(how, capacity)


def is_on() -> bool:
    """Whether anything is recorded."""
    return _recording > 0


def read_clock() -> int:
    """The time in nanoseconds, by the clock of events."""
    return get_library().c.matex_now()


def mark_between_steps() -> None:
    """What lies around this moment is no training step, but the end of an epoch, an evaluation or the like."""
    if _recording:
        get_library().c.matex_between_steps()


def read_events() -> tuple[np.ndarray, int]:
    """The events so far (dtype `EVENT`), in the order in which they ended, and how many older ones are not kept."""
    return read_engine_events(get_library().c)


def read_engine_events(c: ctypes.CDLL) -> tuple[np.ndarray, int]:
    """`read_events` of the engine `c`."""
    dropped = ctypes.c_int64()
    size = 1 << 10
    while True:
        found = np.zeros(size, EVENT)
        count = c.matex_events(found.ctypes.data, size, ctypes.byref(dropped))
        if count < size:
            return found[:count], dropped.value
        size *= 4


def read_event_labels() -> list[str]:
    """What events are about, by their number `label`."""
    return read_engine_labels(get_library().c)


def read_engine_labels(c: ctypes.CDLL) -> list[str]:
    """`read_event_labels` of the engine `c`."""
    size = 1 << 16
    while True:
        text = ctypes.create_string_buffer(size)
        length = c.matex_labels(text, size)
        if length <= size:
            return text.raw[:length].decode(errors="replace").split("\0")[:-1]
        size = 2 * length


def read_totals() -> list[Totals]:
    """The totals of each place."""
    return read_engine_totals(get_library().c)


def read_engine_totals(c: ctypes.CDLL) -> list[Totals]:
    """`read_totals` of the engine `c`."""
    found: list[Totals] = []
    numbers, name = (ctypes.c_int64 * len(_NUMBERS))(), ctypes.create_string_buffer(512)
    while c.matex_totals(len(found), numbers, name, len(name)):
        found.append(Totals(name.value.decode(errors="replace"), *numbers))
    return found


def measure_transfer(overlapped: bool) -> tuple[float, float]:
    """Measure what a transfer costs: seconds to start, and seconds for each byte. Collective, before any update.

    `overlapped`: by the way of updates that are overlapped.
    """
    c = get_library().c
    start_up, byte = ctypes.c_double(), ctypes.c_double()
    if c.matex_link(overlapped, ctypes.byref(start_up), ctypes.byref(byte)):
        raise errors.RankError(interface.get_last_error(c))
    return start_up.value, byte.value


def get_last_measurement() -> tuple[float, float, bool] | None:
    """What the last measurement found: `measure_transfer`'s two numbers, and whether other work disturbed it. None
    without one.
    """
    start_up, byte, disturbed = ctypes.c_double(), ctypes.c_double(), ctypes.c_int()
    if not get_library().c.matex_last_link(ctypes.byref(start_up), ctypes.byref(byte), ctypes.byref(disturbed)):
        return None
    return start_up.value, byte.value, bool(disturbed.value)
