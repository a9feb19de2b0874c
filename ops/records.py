"""Reads the engine's recording of this process: events for timelines, totals for profiles (`sequence/trace.h`).

`matex_tf.observe` turns recording on and calls this module. While it is off, each activity costs the engine one load.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, fields

import numpy as np

from matex_tf import errors

from . import interface
from .library import get_library

TOTALS, EVENTS, GRADIENTS = 1, 2, 3
"""The detail of a recording, as `Recording` of trace.h: totals; totals and events; or also events of single gradients.
"""

ACTIVITIES = (
    "update", "collective", "message", "meet", "bucket", "copy in", "transfer", "copy out", "own gradients", "choice",
    "gap", "between steps", "exposed", "announcement", "entry", "ready", "rows", "pull", "allgather", "broadcast",
)  # fmt: skip
"""The names of the engine's activities, in the order of the enum `Activity` of trace.h, which describes them. The
position is the activity's number in events.
"""

LANES = ("script", "communication", "new weights")
"""The names of the threads of activities, in the order of the enum `Lane` of trace.h."""

EVENT = np.dtype(
    [("start", "i8"), ("duration", "i8"), ("bytes", "i8"), ("label", "i4"), ("activity", "i2"), ("lane", "i2")]
)
"""The fields of an event: times in nanoseconds, the indices of its label, of its activity and of its lane."""

_recording = 0  # see `set_recording`


@dataclass
class Totals:
    """Totals of the updates at one place of the program, without the first updates. Times are in nanoseconds."""

    place: str  # the name of the place
    updates: int  # number of updates
    bytes: int  # bytes of the transfers
    transfers: int  # number of transfers
    transfer: int  # time of the transfers
    copy: int  # time of copies
    exposed: int  # time of transfers and copies that computation did not hide
    exposed_wait: int  # of overlapped updates: time of waiting for other ranks after the last own gradient
    # Of the intervals from one update to the next that are training steps:
    steps: int  # their number
    compute: int  # time between collectives
    meet: int  # time of waiting for other ranks at a rendezvous
    collectives: int  # time in collectives that are no update, without `meet`
    # New weights that arrived while the next step computed:
    pulled: int = 0  # bytes
    pull: int = 0  # time


_FIELDS = [field.name for field in fields(Totals)][1:]  # the fields of the engine's struct Totals, in its order


def set_recording(detail: int, capacity: int = 0) -> None:
    """Start or end recording.

    detail: 0 (nothing), `TOTALS`, `EVENTS` or `GRADIENTS`. capacity: the number of events that the engine keeps, the
    last ones.
    """
    global _recording
    _recording = detail
    get_library().c.matex_record(detail, capacity)


def is_on() -> bool:
    """Whether recording is on."""
    return _recording > 0


def read_clock() -> int:
    """The time in nanoseconds, on the clock of events."""
    return get_library().c.matex_now()


def mark_between_steps() -> None:
    """Mark that the current time is not part of a training step: the end of an epoch, an evaluation and the like."""
    if _recording:
        get_library().c.matex_between_steps()


def read_events(engine: ctypes.CDLL | None = None) -> tuple[np.ndarray, int]:
    """The events so far (dtype `EVENT`), ordered by their ends, and the number of older events that were dropped.

    engine: the compiled engine; default: of this process.
    """
    library, dropped, capacity = engine or get_library().c, ctypes.c_int64(), 1 << 10
    while True:
        events = np.zeros(capacity, EVENT)
        count = library.matex_events(events.ctypes.data, capacity, ctypes.byref(dropped))
        if count < capacity:
            return events[:count], dropped.value
        capacity *= 4


def read_event_labels(engine: ctypes.CDLL | None = None) -> list[str]:
    """The texts of events, indexed by the field `label`. engine: see `read_events`."""
    library, capacity = engine or get_library().c, 1 << 16
    while True:
        text = ctypes.create_string_buffer(capacity)
        length = library.matex_labels(text, capacity)
        if length <= capacity:
            return text.raw[:length].decode(errors="replace").split("\0")[:-1]
        capacity = 2 * length


def read_totals(engine: ctypes.CDLL | None = None) -> list[Totals]:
    """The totals of each place. engine: see `read_events`."""
    library, totals = engine or get_library().c, list[Totals]()
    numbers, place = (ctypes.c_int64 * len(_FIELDS))(), ctypes.create_string_buffer(512)
    while library.matex_totals(len(totals), numbers, place, len(place)):
        totals.append(Totals(place.value.decode(errors="replace"), *numbers))
    return totals


def measure_transfer(overlapped: bool) -> tuple[float, float]:
    """Measure the cost of a transfer: seconds to start, and seconds per byte. Collective, before any update.

    overlapped: measure sums of the overlapped reduction, else of the inline reduction.
    """
    library = get_library().c
    start_seconds, seconds_per_byte = ctypes.c_double(), ctypes.c_double()
    if library.matex_link(overlapped, ctypes.byref(start_seconds), ctypes.byref(seconds_per_byte)):
        raise errors.RankError(interface.get_last_error(library))
    return start_seconds.value, seconds_per_byte.value


def get_last_measurement() -> tuple[float, float, bool] | None:
    """`measure_transfer`'s last two numbers, and whether other work disturbed the measurement; None without one."""
    start_seconds, seconds_per_byte, is_disturbed = ctypes.c_double(), ctypes.c_double(), ctypes.c_int()
    results = start_seconds, seconds_per_byte, is_disturbed
    if not get_library().c.matex_last_link(*(ctypes.byref(result) for result in results)):
        return None
    return start_seconds.value, seconds_per_byte.value, bool(is_disturbed.value)
