"""Replays a measured timeline (a file of MATEX_TIMELINE), for example with a slow rank.

The replay keeps the measured computation of each rank between its collectives, and the measured duration of each
collective after its last rank has arrived. It recomputes how long ranks wait for each other, and so shows how a change
of one rank's computation delays the others. `observe.timeline` writes and describes the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf.planner.simulator.program import ImpossibleRequest

_MEETINGS = ("update", "collective", "allgather", "broadcast", "message", "announcement")
"""Categories of events on the script's lane (0) in which all ranks take part."""
_OWN_GRADIENTS = "gradients are still computed"
_SUMS = "wait for sums"
"""Names of events: the communication lane, which reduces buckets, waits for gradients of its rank; the script waits for
the sums of all gradients.
"""
_AT_ONCE = 1e-6  # seconds; shorter waits do not count
_FIRST_UPDATES = 3  # they trace, compile and choose buckets


@dataclass
class _Rank:
    """The timeline of one rank, in seconds."""

    script: list[tuple[str, float, float]] = field(default_factory=list)
    """(kind, begin, end) of collectives and of waits for sums on the script's lane: one of `_MEETINGS`, or `_SUMS`."""
    buckets: list[list[float]] = field(default_factory=list)
    """For each bucket: the communication lane begins to wait for it, this rank's gradients are ready, it ends."""


@dataclass(frozen=True)
class Replay:
    """Mean seconds of a step: as measured, and as replayed."""

    steps: int
    measured: float
    replayed: float


def is_timeline(path: str | os.PathLike[str]) -> bool:
    """Whether the file was written by MATEX_TIMELINE. Raises OSError."""
    with open(path, "rb") as file:
        return b'"traceEvents"' in file.read(64)


def replay_timeline(path: str | os.PathLike[str], slow: Mapping[int, float] | None = None) -> Replay:
    """Replay the steps of a timeline, from the fourth update on; `slow` maps ranks to factors of their computation.

    A replayed collective begins when the last rank has arrived; a bucket also waits for a free lane. Without changes
    the result is the measured step.

    Raises:
        ImpossibleRequest: the timeline has too few updates, or ranks with different numbers of collectives.
    """
    ranks = _read_ranks(json.loads(Path(path).read_text())["traceEvents"])
    slow = slow or {}
    if unknown_ranks := [rank for rank in slow if rank >= len(ranks)]:
        raise ImpossibleRequest(f"slow={unknown_ranks[0]}:...: the timeline has ranks 0 to {len(ranks) - 1}")
    factors = np.array([slow.get(rank, 1.0) for rank in range(len(ranks))])
    ends, replayed_ends = _replay_updates(ranks, factors)
    if len(ends) < _FIRST_UPDATES + 2:
        raise ImpossibleRequest(
            f"{path} has {len(ends)} updates; {_FIRST_UPDATES + 2} or more are needed: the first ones are not counted"
        )
    steps = len(ends) - _FIRST_UPDATES - 1
    return Replay(
        steps, (ends[-1] - ends[_FIRST_UPDATES]) / steps, (replayed_ends[-1] - replayed_ends[_FIRST_UPDATES]) / steps
    )


def _read_ranks(rows: Sequence[Mapping[str, Any]]) -> list[_Rank]:
    """The ranks of a timeline, from its events `rows`. Raises ImpossibleRequest: their collectives differ."""
    ranks_by_number: dict[int, _Rank] = {}
    for row in sorted((row for row in rows if row["ph"] == "X"), key=lambda row: (row["ts"], -row["dur"])):
        rank = ranks_by_number.setdefault(row["pid"], _Rank())
        begin, end = row["ts"] * 1e-6, (row["ts"] + row["dur"]) * 1e-6
        if row["tid"] == 0:
            if row["cat"] in _MEETINGS:
                rank.script.append((row["cat"], begin, end))
            elif row["name"] == _SUMS:
                rank.script.append((_SUMS, begin, end))
        elif row["name"] == _OWN_GRADIENTS:
            rank.buckets.append([begin, end, end])
        elif row["cat"] == "bucket" and rank.buckets:
            rank.buckets[-1][-1] = end
    ranks = [ranks_by_number[rank] for rank in sorted(ranks_by_number)]
    for rank in ranks:
        rank.script = _drop_short_waits(rank.script)
    collectives = {(tuple(kind for kind, _, _ in rank.script), len(rank.buckets)) for rank in ranks}
    if len(collectives) != 1:
        raise ImpossibleRequest(
            "this timeline cannot be replayed: its ranks do not have the same collectives in the same order (the run "
            "failed, or some events were not kept)"
        )
    return ranks


def _drop_short_waits(script: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """Of the waits for sums, keep the last one before each announcement of an update, and before the end.

    After an earlier wait the script still had work to do.
    """
    shortened: list[tuple[str, float, float]] = []
    has_wait = False
    for kind, begin, end in script:
        if kind == _SUMS:
            has_wait = True
            last_wait = (begin, end)
            continue
        if kind == "announcement" and has_wait:
            shortened.append((_SUMS, *last_wait))
            has_wait = False
        shortened.append((kind, begin, end))
    return [*shortened, (_SUMS, *last_wait)] if has_wait else shortened


def _replay_updates(ranks: Sequence[_Rank], factors: np.ndarray) -> tuple[list[float], list[float]]:
    """The ends of the updates on rank 0: (as measured, as replayed). All arrays below have a time of each rank."""
    buckets = np.array([rank.buckets for rank in ranks]).reshape(len(ranks), -1, 3).transpose(1, 2, 0)
    replayed_start = np.array([rank.script[0][1] for rank in ranks])
    # The start of a rank's current interval of computation, as measured: the end of its last collective.
    measured_start = replayed_start
    # The (measured, replayed) starts of the intervals since the last update was announced.
    starts: list[tuple[np.ndarray, np.ndarray]] = []
    lane_free, next_bucket = 0.0, 0
    ends, replayed_ends = [], []
    for index, (kind, _, _) in enumerate(ranks[0].script):
        begin, end = np.array([rank.script[index][1:] for rank in ranks]).T
        # Each rank's computation since its last collective takes as long as measured, times its factor.
        arrival = replayed_start + (begin - measured_start) * factors
        if kind == _SUMS:
            stop = next_bucket  # buckets that were ready on rank 0 before its wait ended belong to this update
            while stop < len(buckets) and buckets[stop][1][0] <= end[0]:
                stop += 1
            lane_free = _replay_buckets(buckets[next_bucket:stop], factors, starts, lane_free)
            next_bucket = stop
            # A rank that waited for the last sum continues as long after it as in the measurement.
            last_sum_end = buckets[stop - 1][2]
            replayed_start = np.maximum(arrival, lane_free) + np.maximum(end - np.maximum(begin, last_sum_end), 0.0)
        else:
            # A collective takes as long after the last arrival as measured; ranks leave it with the measured delays.
            price = max(0.0, end.min() - begin.max())
            replayed_start = arrival.max() + price + (end - end.min())
        measured_start = end
        if kind == "announcement":
            starts.clear()
        starts.append((measured_start, replayed_start))
        if kind in ("update", _SUMS):
            ends.append(float(measured_start[0]))
            replayed_ends.append(float(replayed_start[0]))
    return ends, replayed_ends


def _replay_buckets(
    buckets: np.ndarray, factors: np.ndarray, starts: Sequence[tuple[np.ndarray, np.ndarray]], lane_free: float
) -> float:
    """The replayed end of the `buckets` of one update; the lane is free from `lane_free` on.

    `starts` are the measured and the replayed starts of the intervals of computation in which gradients became ready.
    """
    for index, (lane, ready, end) in enumerate(buckets):
        # A time in an interval of computation, or before the first one, moves with its start, times the factor.
        replayed_ready = ready
        for number, (measured, replayed) in enumerate(starts):
            replayed_ready = np.where(
                (measured <= ready) | (number == 0), replayed + (ready - measured) * factors, replayed_ready
            )
        has_waited = (ready - lane > _AT_ONCE) | (index == 0)  # else it was ready before the lane reached it
        lane_free = max([lane_free, *replayed_ready[has_waited]]) + end.max() - ready.max()
    return float(lane_free)
