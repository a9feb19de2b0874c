"""Writes a simulated run as a timeline for Perfetto, in the format of MATEX_TIMELINE, for comparison."""

from __future__ import annotations

import os

import numpy as np

from matex_tf.observe import timeline
from matex_tf.ops import records

MAX_RANKS = 64
"""A timeline shows at most this number of ranks, the first ones."""


class Trace:
    """The recorded activities of each shown rank."""

    def __init__(self, ranks: int, per_host: int):
        self.ranks, self.per_host = ranks, per_host
        # For each shown rank, its events in the layout of `records.EVENT`; times in nanoseconds.
        self._events: list[list[tuple[int, ...]]] = [[] for _ in range(min(ranks, MAX_RANKS))]
        self._labels: dict[str, int] = {}  # the number of each label in the file

    def note_activity(
        self, activity: str, begin: float | np.ndarray, end: float | np.ndarray, lane: int = 0, label: str = "",
        size: int = 0,
    ) -> None:  # fmt: skip
        """Record an activity of all ranks. begin, end: seconds, one number for all ranks or one for each."""
        label_number = self._labels.setdefault(label, len(self._labels)) if label else -1
        kind = records.ACTIVITIES.index(activity)
        starts, stops = ((np.broadcast_to(time, self.ranks) * 1e9).round().astype(int) for time in (begin, end))
        for events, start, stop in zip(self._events, starts.tolist(), stops.tolist()):
            events.append((start, stop - start, size, label_number, kind, lane))

    def write_file(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline to `path`. Raises OSError."""
        shown_ranks = len(self._events)
        remarks = {
            "clock": "simulated",
            "clocks of other hosts": {},
            "events not kept": [0] * shown_ranks,
            "ranks": f"the first {shown_ranks} of {self.ranks}",
        }
        timeline.write_file(os.fspath(path), map(self._format_part, range(shown_ranks)), remarks)

    def _format_part(self, rank: int) -> str:
        events = np.array(self._events[rank], records.EVENT)
        times = np.stack([events["start"], events["start"] + events["duration"]])
        return timeline.format_part(events, list(self._labels), rank, f"simulated host {rank // self.per_host}", times)
