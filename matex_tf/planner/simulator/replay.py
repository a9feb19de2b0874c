"""Replays a measured timeline (a file of MATEX_TIMELINE), for example with a slow rank.

The replay keeps the measured computation of each rank between its collectives, and the measured duration of each
collective after its last rank has arrived. It recomputes how long ranks wait for each other, and so shows how a change
of one rank's computation delays the others. `observe.timeline` writes and describes the file.

A lane is a thread of a rank. On the script's lane a rank computes, takes part in collectives, and waits for sums of
gradients. With overlapped updates, its communication lane sums buckets of gradients at the same time. Arrays of times
have a time of each rank.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf.planner.simulator.what_if import ImpossibleRequest

_COLLECTIVES = ("update", "collective", "allgather", "broadcast", "message", "announcement")
"""Categories of the events on the script's lane (0) that are collectives. An "update" sums the gradients of an inline
update; an "announcement" announces an overlapped update, whose sums follow on the communication lane.
"""
_OWN_GRADIENTS = "gradients are still computed"
"""The name of an event: the communication lane waits for a bucket's gradients of its own rank."""
_SUMS = "wait for sums"
"""The name of an event: the script waits for the sums of all gradients."""
_MIN_WAIT = 1e-6  # seconds; shorter waits do not count
_FIRST_UPDATES = 3  # updates that do not count: they trace, compile and choose buckets


@dataclass
class _Rank:
    """The timeline of one rank, in seconds."""

    script: list[tuple[str, float, float]] = field(default_factory=list)
    """On the script's lane: (kind, begin, end) of collectives (`_COLLECTIVES`) and of waits for sums (`_SUMS`)."""
    buckets: list[list[float]] = field(default_factory=list)
    """For each bucket, three times: the lane begins to wait for it, this rank's gradients are ready, the sum ends."""


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
    """Replay the steps after the fourth update of a timeline; `slow` maps ranks to factors of their computation.

    A step lasts from the end of one update to the end of the next, so the fourth update is the start of the first step.
    A replayed collective begins when the last rank has arrived; a bucket also waits for a free lane. Without changes
    the result is the measured step.

    Raises:
        ImpossibleRequest: the file is no complete timeline, or has too few updates, or ranks with other collectives.
    """
    try:
        ranks_by_number = _read_ranks(json.loads(Path(path).read_text())["traceEvents"])
    except (ValueError, TypeError, KeyError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ImpossibleRequest(f"{path} is not a complete file of MATEX_TIMELINE: {reason}") from None
    ranks = list(ranks_by_number.values())
    if not _have_same_collectives(ranks):
        raise ImpossibleRequest(
            "this timeline cannot be replayed: its ranks do not have the same collectives in the same order (the run "
            "failed, or some events were not kept)"
        )
    slow = slow or {}
    if unknown_ranks := [rank for rank in slow if rank not in ranks_by_number]:
        known_ranks = f"ranks {min(ranks_by_number)} to {max(ranks_by_number)}"
        raise ImpossibleRequest(f"slow={unknown_ranks[0]}:...: the timeline has {known_ranks}")
    factors = np.array([slow.get(rank, 1.0) for rank in ranks_by_number])
    ends, replayed_ends = _replay_updates(ranks, factors)
    if len(ends) < _FIRST_UPDATES + 2:
        raise ImpossibleRequest(
            f"{path} has {len(ends)} updates; {_FIRST_UPDATES + 2} or more are needed: the first ones are not counted"
        )
    steps = len(ends) - _FIRST_UPDATES - 1
    return Replay(
        steps, (ends[-1] - ends[_FIRST_UPDATES]) / steps, (replayed_ends[-1] - replayed_ends[_FIRST_UPDATES]) / steps
    )


def _read_ranks(events: Sequence[Mapping[str, Any]]) -> dict[int, _Rank]:
    """The ranks of a timeline by their numbers, ascending, from its `events`. A rank's own file has one rank."""
    ranks_by_number: dict[int, _Rank] = {}
    # Events with a duration (ph is "X"): pid is the rank, tid the lane, ts the begin and dur the duration in
    # microseconds.
    for event in sorted(
        (event for event in events if event["ph"] == "X"), key=lambda event: (event["ts"], -event["dur"])
    ):
        rank = ranks_by_number.setdefault(event["pid"], _Rank())
        begin, end = event["ts"] * 1e-6, (event["ts"] + event["dur"]) * 1e-6
        if event["tid"] == 0:
            if event["cat"] in _COLLECTIVES:
                rank.script.append((event["cat"], begin, end))
            elif event["name"] == _SUMS:
                rank.script.append((_SUMS, begin, end))
        elif event["name"] == _OWN_GRADIENTS:
            rank.buckets.append([begin, end, end])
        elif event["cat"] == "bucket" and rank.buckets:
            rank.buckets[-1][-1] = end  # the event "bucket" follows the wait for its gradients
    for rank in ranks_by_number.values():
        rank.script = _keep_last_waits(rank.script)
    return dict(sorted(ranks_by_number.items()))


def _have_same_collectives(ranks: Sequence[_Rank]) -> bool:
    """Whether all ranks have the same collectives in the same order, and each wait for sums has buckets."""
    collectives = {(tuple(kind for kind, _, _ in rank.script), len(rank.buckets)) for rank in ranks}
    if len(collectives) != 1:
        return False
    ((kinds, bucket_count),) = collectives
    return bucket_count > 0 or _SUMS not in kinds


def _keep_last_waits(script: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """Keep only the last wait for sums before each announcement of an update, and before the end.

    This wait ends the update; after earlier waits the script still had work to do.
    """
    kept_events: list[tuple[str, float, float]] = []
    last_wait: tuple[float, float] | None = None
    for kind, begin, end in script:
        if kind == _SUMS:
            last_wait = begin, end
            continue
        if kind == "announcement" and last_wait:
            kept_events.append((_SUMS, *last_wait))
            last_wait = None
        kept_events.append((kind, begin, end))
    return [*kept_events, (_SUMS, *last_wait)] if last_wait else kept_events


def _replay_updates(ranks: Sequence[_Rank], factors: np.ndarray) -> tuple[list[float], list[float]]:
    """The ends of the updates on rank 0: (as measured, as replayed).

    Goes through the events of the script's lane, each for all ranks: when ranks arrive in the replay, and when they
    continue. Between two events a rank computes.
    """
    if not ranks[0].script:  # no rank has collectives
        return [], []
    # By bucket, then by its three times (`_Rank.buckets`), then by rank.
    buckets = np.array([rank.buckets for rank in ranks]).reshape(len(ranks), -1, 3).transpose(1, 2, 0)
    # The start of each rank's current interval of computation: the end of its last event, at first the begin of the
    # first event.
    replayed_start = measured_start = np.array([rank.script[0][1] for rank in ranks])
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
            # After the last sum, or after its arrival if that is later, a rank needs as long as measured to continue.
            last_sum_end = buckets[stop - 1][2]
            replayed_start = np.maximum(arrival, lane_free) + np.maximum(end - np.maximum(begin, last_sum_end), 0.0)
        else:
            # A collective takes as long after the last arrival as measured; ranks leave it with the measured delays.
            duration = max(0.0, end.min() - begin.max())
            replayed_start = arrival.max() + duration + (end - end.min())
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
    """The replayed end of the `buckets` of one update; the communication lane is free from `lane_free` on.

    `starts` are the measured and the replayed starts of the intervals of computation in which gradients became ready.
    """
    for index, (wait_begin, ready, end) in enumerate(buckets):
        # A rank's gradients became ready in the last interval of computation that began before them, or else in the
        # first one. In the replay, the time from the start of this interval until they are ready is the measured time
        # times the factor.
        replayed_ready = ready
        for interval_index, (measured_start, replayed_start) in enumerate(starts):
            replayed_ready = np.where(
                (measured_start <= ready) | (interval_index == 0),
                replayed_start + (ready - measured_start) * factors,
                replayed_ready,
            )
        # If the lane of a rank has not waited, the gradients were ready at an unknown time before. Such a rank does not
        # delay the sum in the replay either. The first bucket always counts: before it the lane was idle.
        has_waited = (ready - wait_begin > _MIN_WAIT) | (index == 0)
        start = max([lane_free, *replayed_ready[has_waited]])
        lane_free = start + end.max() - ready.max()  # the sum takes as long after the last rank's gradients as measured
    return float(lane_free)
