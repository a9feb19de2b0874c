"""Reports the staleness of asynchronous updates."""

from __future__ import annotations

import itertools
from collections import Counter


def describe_turns(counts: Counter[int], waited_seconds: float, lost_updates: int) -> str:
    """The summary of a training, for a message.

    counts: the number of updates by staleness. The staleness of an update is the number of updates by other ranks
        since its weights were read.
    waited_seconds: of all ranks together.
    lost_updates: the number of updates of lost ranks, whose staleness is not known.
    """
    by_lost = f", {lost_updates} more by ranks that were lost" if lost_updates else ""
    updates = sum(counts.values())
    mean = sum(staleness * count for staleness, count in counts.items()) / updates
    ordered = sorted(counts)
    cumulated = itertools.accumulate(counts[staleness] for staleness in ordered)
    percentile = next(staleness for staleness, total in zip(ordered, cumulated) if total >= 0.99 * updates)
    return (
        f"asynchronous: {updates} updates{by_lost}; staleness {mean:.2f} on average, {percentile} at the 99th "
        f"percentile, at most {max(counts)}; {waited_seconds:.1f} s waited at the bound by all ranks together"
    )
