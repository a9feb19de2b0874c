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
class _Bucket:
    """The times of a bucket of an update, on one rank, in seconds."""

    lane: float
    """The communication lane begins to wait for the bucket."""
    ready: float
    """This rank's gradients are ready."""
    end: float


@dataclass
class _Rank:
    """The timeline of one rank."""

    script: list[tuple[str, float, float]] = field(default_factory=list)
    """(kind, begin, end) of collectives and of waits for sums on the script's lane: one of `_MEETINGS`, or `_SUMS`."""
    buckets: list[_Bucket] = field(default_factory=list)


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
    factors = [slow.get(rank, 1.0) for rank in range(len(ranks))]
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
            rank.buckets.append(_Bucket(begin, end, end))
        elif row["cat"] == "bucket" and rank.buckets:
            rank.buckets[-1].end = end
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


def _replay_updates(ranks: Sequence[_Rank], factors: Sequence[float]) -> tuple[list[float], list[float]]:
    """The ends of the updates on rank 0: (as measured, as replayed)."""
    replayed_starts = [rank.script[0][1] for rank in ranks]
    # For each rank, the start of its current interval of computation, as measured: the end of its last collective.
    measured_starts = list(replayed_starts)
    lane_free, next_bucket = 0.0, 0
    ends, replayed_ends = [], []
    # For each rank, the (measured, replayed) starts of the intervals since the last update was announced.
    points: list[list[tuple[float, float]]] = [[] for _ in ranks]
    for index, (kind, _, _) in enumerate(ranks[0].script):
        spans = [rank.script[index][1:] for rank in ranks]  # (begin, end) on each rank, as measured
        # Each rank's computation since its last collective takes as long as measured, times its factor.
        arrivals = [
            replayed + (begin - measured) * factor
            for replayed, (begin, _), measured, factor in zip(replayed_starts, spans, measured_starts, factors)
        ]
        if kind == _SUMS:
            lane_free, next_bucket = _replay_buckets(ranks, factors, points, lane_free, next_bucket, spans)
            # A rank that waited for the last sum continues as long after it as in the measurement.
            last_bucket_ends = [rank.buckets[next_bucket - 1].end for rank in ranks]
            replayed_starts = [
                max(own, lane_free) + max(0.0, end - max(begin, done))
                for own, (begin, end), done in zip(arrivals, spans, last_bucket_ends)
            ]
        else:
            # A collective takes as long after the last arrival as measured; ranks leave it with the measured delays.
            last_begin, first_end = max(begin for begin, _ in spans), min(end for _, end in spans)
            price = max(0.0, first_end - last_begin)
            replayed_starts = [max(arrivals) + price + (end - first_end) for _, end in spans]
        measured_starts = [end for _, end in spans]
        for rank, point in enumerate(zip(measured_starts, replayed_starts)):
            if kind == "announcement":
                points[rank].clear()
            points[rank].append(point)
        if kind in ("update", _SUMS):
            ends.append(measured_starts[0])
            replayed_ends.append(replayed_starts[0])
    return ends, replayed_ends


def _replay_buckets(
    ranks: Sequence[_Rank], factors: Sequence[float], points: Sequence[Sequence[tuple[float, float]]],
    lane_free: float, first: int, spans: Sequence[tuple[float, float]],
) -> tuple[float, int]:  # fmt: skip
    """Replay the buckets of one update, from bucket `first` on; the lane is free from `lane_free` on.

    `spans` are the measured waits of the ranks for these sums. Returns (end of the last bucket, index of the next one).
    """
    stop = first  # buckets that were ready on rank 0 before its wait ended belong to this update
    while stop < len(ranks[0].buckets) and ranks[0].buckets[stop].ready <= spans[0][1]:
        stop += 1
    for index in range(first, stop):
        buckets = [rank.buckets[index] for rank in ranks]
        ready = [
            _shift_time(bucket.ready, rank_points, factor)
            for bucket, rank_points, factor in zip(buckets, points, factors)
            if bucket.ready - bucket.lane > _AT_ONCE or index == first  # else it was ready before the lane reached it
        ]
        start = max(bucket.ready for bucket in buckets)
        price = max(bucket.end for bucket in buckets) - start
        lane_free = max([lane_free, *ready]) + price
    return lane_free, stop


def _shift_time(time: float, points: Sequence[tuple[float, float]], factor: float) -> float:
    """The replayed time of a measured `time`, from the last of the `points` before it, or else from the first one."""
    measured, replayed = next((point for point in reversed(points) if point[0] <= time), points[0])
    return replayed + (time - measured) * factor
