"""Determines which rank the others wait for: the rank that waits least. Pure functions of samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matex_tf.monitor.recording import Series

MIN_IMBALANCE = 0.01
"""A share of the step: a smaller delay is no imbalance."""
STALLED = 5.0
"""Seconds of waiting at one place after which a rank counts as stalled."""


@dataclass(frozen=True)
class Step:
    """The times of a rank's training step, in seconds.

    input: the part of `compute` that waits for a batch; NaN if it was not recorded.
    """

    compute: float
    waiting: float
    sums: float
    input: float = math.nan

    @property
    def whole(self) -> float:
        return self.compute + self.waiting + self.sums


def compute_mean_step(series: Series) -> Step | None:
    """The mean over the steps of `series`; None if there are no steps."""
    steps = series.compute_growth("st")
    if not steps > 0:
        return None
    return Step(*(series.compute_growth(name) / steps for name in ("com", "wait", "sum", "in")))


def find_stalled(ranks: Mapping[int, Series]) -> tuple[list[int], list[int], float, str] | None:
    """The waiting ranks, the other ranks, the waiting time and the place; None if no rank waits for long."""
    waiting = {rank: series.waits for rank, series in ranks.items() if not series.ended}
    here = [rank for rank, (seconds, _) in waiting.items() if seconds >= STALLED]
    if not here:
        return None
    longest = max(waiting[rank] for rank in here)
    return here, [rank for rank in waiting if rank not in here], *longest


def find_slowest(steps: Mapping[int, Step]) -> tuple[int, float] | None:
    """The rank that the others wait for, and their extra waiting in each step, in seconds; None if the ranks are
    balanced.
    """
    if len(steps) < 2:
        return None
    rank = min(steps, key=lambda one: (steps[one].waiting, -steps[one].compute))
    others = [step.waiting - steps[rank].waiting for one, step in steps.items() if one != rank]
    behind = sum(others) / len(others)
    return (rank, behind) if behind >= MIN_IMBALANCE * steps[rank].whole else None


def describe_waits(ranks: Mapping[int, Series], steps: Mapping[int, Step], hosts: Sequence[str]) -> str:
    """A message about the rank that others wait for; "" if too little is known."""
    if stall := find_stalled(ranks):
        here, late, seconds, what = stall
        whom = ", ".join(f"rank {rank} ({hosts[rank]})" for rank in late[:3]) or "one another"
        more = f" and {len(late) - 3} more" if len(late) > 3 else ""
        who = f"{len(here)} ranks have" if len(here) > 1 else f"rank {here[0]} has"
        return f"{who} waited {seconds:.0f} s for {whom}{more} at {what}"
    if not steps:
        return ""
    found = find_slowest(steps)
    if found is None:
        return "the ranks are balanced: none delays the others by more than 1% of a step" if len(steps) > 1 else ""
    rank, behind = found
    share = behind / steps[rank].whole
    return f"the others wait for rank {rank} ({hosts[rank]}): {behind * 1e3:.1f} ms in each step, {share:.0%} of it"


def group_by_host(ranks: Mapping[int, Series], hosts: Sequence[str]) -> dict[str, list[int]]:
    """The ranks of each host."""
    found: dict[str, list[int]] = {}
    for rank in ranks:
        found.setdefault(hosts[rank], []).append(rank)
    return found


def count_other_cores(ranks: Mapping[int, Series], here: Sequence[int]) -> float:
    """The number of a host's cores that are busy with processes other than its ranks `here`."""
    first = ranks[here[0]]
    took = first.compute_growth("t")
    if not took > 0:
        return 0.0
    mine = sum(
        ranks[rank].compute_growth("cpu") / ranks[rank].compute_growth("t")
        for rank in here
        if ranks[rank].compute_growth("t") > 0
    )
    return max(first.compute_growth("busy") / took - mine, 0.0)


def compute_mean_steps(ranks: Mapping[int, Series]) -> dict[int, Step]:
    """The mean step of each rank that has computed steps."""
    return {rank: step for rank, series in ranks.items() if (step := compute_mean_step(series))}
