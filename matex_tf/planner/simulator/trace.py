"""Writes a simulated run as a timeline for Perfetto, in the format of MATEX_TIMELINE, for comparison."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from matex_tf.observe import timeline
from matex_tf.ops import records

MAX_RANKS = 64
"""A timeline shows at most this number of ranks, the first ones."""


class Trace:
    """The recorded activities of each rank."""

    def __init__(self, ranks: int, per_host: int):
        self.ranks, self.per_host = ranks, per_host
        # For each shown rank, its events in the layout of `records.EVENT`; times in nanoseconds.
        self._events: list[list[tuple[int, int, int, int, int, int]]] = [[] for _ in range(min(ranks, MAX_RANKS))]
        self._labels: dict[str, int] = {}
        self._activities = {name: number for number, name in enumerate(records.ACTIVITIES)}

    def note_activity(
        self, rank: int, activity: str, lane: int, begin: float, end: float, label: str, size: int
    ) -> None:
        """Record an activity of a rank, from `begin` to `end` seconds (a `ranks.Note`)."""
        if rank < MAX_RANKS:
            number = self._labels.setdefault(label, len(self._labels)) if label else -1
            start = round(begin * 1e9)
            event = start, round(end * 1e9) - start, size, number, self._activities[activity], lane
            self._events[rank].append(event)

    def write_file(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline to `path`. Raises OSError."""
        shown_ranks = len(self._events)
        remarks = {
            "clock": "simulated",
            "clocks of other hosts": {},
            "events not kept": [0] * shown_ranks,
            "ranks": f"the first {shown_ranks} of {self.ranks}",
        }
        rank_parts = (self._format_part(rank) for rank in range(shown_ranks))
        timeline.write_file(os.fspath(path), rank_parts, remarks)

    def _format_part(self, rank: int) -> str:
        events = np.array(self._events[rank], records.EVENT)
        times = np.stack([events["start"], events["start"] + events["duration"]])
        return timeline.format_part(events, list(self._labels), rank, f"simulated host {rank // self.per_host}", times)


def open_trace(path: str | None, ranks: int, per_host: int) -> tuple[Trace | None, Callable[..., None] | None]:
    """(a trace, its `note_activity`); (None, None) without a `path`."""
    trace = Trace(ranks, per_host) if path else None
    return trace, trace.note_activity if trace else None
