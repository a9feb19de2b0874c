"""Replays a measured timeline: keeps the computation of each rank, and recomputes its waiting times.

The entry point is `replay_timeline`, for a file of MATEX_TIMELINE.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matex_tf.planner.simulator.program import NotAsked

_MEETINGS = ("update", "collective", "allgather", "broadcast", "message", "announcement")
_OWN_GRADIENTS = "gradients are still computed"
_SUMS = "wait for sums"
_AT_ONCE = 1e-6
_FIRST_UPDATES = 3  # they trace, compile and choose buckets


@dataclass
class _Bucket:
    """A bucket of an update, in seconds: start of the lane's wait for it, time when this rank's gradients were ready,
    end.
    """

    lane: float
    ready: float
    end: float


@dataclass
class _Rank:
    """The timeline of one rank: (kind, begin, end) on the lane of the script, and its buckets."""

    script: list[tuple[str, float, float]] = field(default_factory=list)
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

    The file provides: for each rank, its computation between collectives; for each collective, its duration after the
    last rank arrived; for each bucket, when each rank had its gradients. A replayed collective starts when the last
    rank arrives, a bucket also waits for a free lane. Without changes the result is the measured step; with a slow
    rank it shows the waiting times of the other ranks.

    Raises:
        NotAsked: the timeline has too few updates, or ranks with different numbers of collectives.
    """
    ranks = _read_ranks(json.loads(Path(path).read_text())["traceEvents"])
    slow = slow or {}
    if strange := [rank for rank in slow if rank >= len(ranks)]:
        raise NotAsked(f"slow={strange[0]}:...: the timeline has ranks 0 to {len(ranks) - 1}")
    factors = [slow.get(rank, 1.0) for rank in range(len(ranks))]
    ends, again = _replay_updates(ranks, factors)
    if len(ends) < _FIRST_UPDATES + 2:
        raise NotAsked(
            f"{path} has {len(ends)} updates; {_FIRST_UPDATES + 2} or more are needed: the first ones are not counted"
        )
    steps = len(ends) - _FIRST_UPDATES - 1
    return Replay(steps, (ends[-1] - ends[_FIRST_UPDATES]) / steps, (again[-1] - again[_FIRST_UPDATES]) / steps)


def _read_ranks(rows: Sequence[Mapping[str, Any]]) -> list[_Rank]:
    """The ranks of a timeline."""
    found: dict[int, _Rank] = {}
    for row in sorted((row for row in rows if row["ph"] == "X"), key=lambda row: (row["ts"], -row["dur"])):
        rank = found.setdefault(row["pid"], _Rank())
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
    ranks = [found[rank] for rank in sorted(found)]
    for rank in ranks:
        rank.script = _drop_short_waits(rank.script)
    kinds = [[kind for kind, _, _ in rank.script] for rank in ranks]
    if not ranks or any(one != kinds[0] for one in kinds) or len({len(rank.buckets) for rank in ranks}) > 1:
        raise NotAsked(
            "this timeline cannot be replayed: its ranks do not have the same collectives in the same order (the run "
            "failed, or some events were not kept)"
        )
    return ranks


def _drop_short_waits(script: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """Keep only the waits for sums that end a step: before other collectives the script still had work to do."""
    kept: list[tuple[str, float, float]] = []
    waits = False
    for kind, begin, end in script:
        if kind == _SUMS:
            waits = True
            last = (begin, end)
            continue
        if kind == "announcement" and waits:
            kept.append((_SUMS, *last))
            waits = False
        kept.append((kind, begin, end))
    return [*kept, (_SUMS, *last)] if waits else kept


def _replay_updates(ranks: Sequence[_Rank], factors: Sequence[float]) -> tuple[list[float], list[float]]:
    """The end of each update, as measured on rank 0, and as replayed."""
    now = [rank.script[0][1] for rank in ranks]
    before = list(now)  # the measured start of each rank's current interval
    lane_free, next_bucket = 0.0, 0
    ends, again = [], []
    # starts of an update's intervals: (measured, replayed)
    points: list[list[tuple[float, float]]] = [[] for _ in ranks]
    for place, (kind, _, _) in enumerate(ranks[0].script):
        spans = [rank.script[place][1:] for rank in ranks]
        came = [at + (begin - since) * factor for at, (begin, _), since, factor in zip(now, spans, before, factors)]
        if kind == _SUMS:
            lane_free, next_bucket = _replay_buckets(ranks, factors, points, lane_free, next_bucket, spans)
            # Ranks that waited continue as long after the last sum as in the measurement.
            last = [rank.buckets[next_bucket - 1].end for rank in ranks]
            now = [
                max(own, lane_free) + max(0.0, end - max(begin, done))
                for own, (begin, end), done in zip(came, spans, last)
            ]
        else:
            start = max(begin for begin, _ in spans)
            price = max(0.0, min(end for _, end in spans) - start)
            now = [max(came) + price + (end - min(end for _, end in spans)) for _, end in spans]
        before = [end for _, end in spans]
        for rank, point in enumerate(zip(before, now)):
            if kind == "announcement":
                points[rank].clear()
            points[rank].append(point)
        if kind in ("update", _SUMS):
            ends.append(before[0])
            again.append(now[0])
    return ends, again


def _replay_buckets(
    ranks: Sequence[_Rank], factors: Sequence[float], points: Sequence[Sequence[tuple[float, float]]],
    lane_free: float,
    first: int, spans: Sequence[tuple[float, float]],
) -> tuple[float, int]:  # fmt: skip
    """Replay the buckets of one update. Returns the end of the last bucket, and the index of the next bucket."""
    past = first
    while past < len(ranks[0].buckets) and ranks[0].buckets[past].ready <= spans[0][1]:
        past += 1
    for number in range(first, past):
        buckets = [rank.buckets[number] for rank in ranks]
        ready = [
            _shift_time(bucket.ready, since, factor)
            for bucket, since, factor in zip(buckets, points, factors)
            if bucket.ready - bucket.lane > _AT_ONCE or number == first  # else it was ready before the lane reached it
        ]
        start = max(bucket.ready for bucket in buckets)
        price = max(bucket.end for bucket in buckets) - start
        lane_free = max([lane_free, *ready]) + price
    return lane_free, past


def _shift_time(time: float, points: Sequence[tuple[float, float]], factor: float) -> float:
    """The replayed time of a measured `time`, from the last of the `points` before it."""
    since, at = next((point for point in reversed(points) if point[0] <= time), points[0])
    return at + (time - since) * factor
