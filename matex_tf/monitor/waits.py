"""Describes which ranks wait for which, from samples, for `matex top` and the report. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matex_tf.monitor import progress
from matex_tf.monitor.recording import Series
from matex_tf.observe.balance import BALANCED, Step, find_slowest

STALLED = 5.0
"""Seconds of waiting at one place after which a rank counts as stalled."""


def compute_mean_step(series: Series) -> Step | None:
    """The mean times of a step in the samples `series` of a rank; None if there are no steps."""
    steps = series.compute_growth("st")  # a counter in the samples: the number of steps so far
    if not steps > 0:
        return None
    # Further counters: seconds of computation, waiting, sums and input, in the order of Step's fields.
    return Step(*(series.compute_growth(name) / steps for name in ("com", "wait", "sum", "in")))


def find_stalled(ranks: Mapping[int, Series]) -> tuple[list[int], list[int], float, str] | None:
    """The waiting ranks, the other ranks, the waiting time and the place; None if no rank waits for long."""
    waits_by_rank = {rank: series.waits for rank, series in ranks.items() if not series.ended}
    waiting_ranks = [rank for rank, (seconds, _) in waits_by_rank.items() if seconds >= STALLED]
    if not waiting_ranks:
        return None
    other_ranks = [rank for rank in waits_by_rank if rank not in waiting_ranks]
    longest_seconds, place = max(waits_by_rank[rank] for rank in waiting_ranks)
    return waiting_ranks, other_ranks, longest_seconds, place


def describe_waits(ranks: Mapping[int, Series], steps: Mapping[int, Step], hosts: Sequence[str]) -> str:
    """A message about the rank that others wait for; "" if too little is known."""
    if stall := find_stalled(ranks):
        waiting_ranks, late_ranks, seconds, place = stall
        awaited_ranks = ", ".join(f"rank {rank} ({hosts[rank]})" for rank in late_ranks[:3]) or "one another"
        more_text = f" and {len(late_ranks) - 3} more" if len(late_ranks) > 3 else ""
        subject = f"{len(waiting_ranks)} ranks have" if len(waiting_ranks) > 1 else f"rank {waiting_ranks[0]} has"
        return f"{subject} waited {seconds:.0f} s for {awaited_ranks}{more_text} at {place}"
    if not steps:
        return ""
    slowest = find_slowest(steps)
    if slowest is None:
        return BALANCED if len(steps) > 1 else ""
    rank, extra_wait = slowest
    share = extra_wait / steps[rank].whole
    return f"the others wait for rank {rank} ({hosts[rank]}): {extra_wait * 1e3:.1f} ms in each step, {share:.0%} of it"


def group_by_host(ranks: Mapping[int, Series], hosts: Sequence[str]) -> dict[str, list[int]]:
    ranks_by_host: dict[str, list[int]] = {}
    for rank in ranks:
        ranks_by_host.setdefault(hosts[rank], []).append(rank)
    return ranks_by_host


def count_other_cores(ranks: Mapping[int, Series], host_ranks: Sequence[int]) -> float:
    """The number of a host's cores that are busy with processes other than its ranks `host_ranks`."""
    busy_cores = progress.compute_mean_rate(ranks[host_ranks[0]], "busy")  # of the whole host, in any rank's samples
    cores_of_ranks = sum(progress.compute_mean_rate(ranks[rank], "cpu") for rank in host_ranks)
    return max(busy_cores - cores_of_ranks, 0.0)


def compute_mean_steps(ranks: Mapping[int, Series]) -> dict[int, Step]:
    return {rank: step for rank, series in ranks.items() if (step := compute_mean_step(series))}
