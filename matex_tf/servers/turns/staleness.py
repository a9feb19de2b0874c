"""Reports the staleness of asynchronous updates."""

from __future__ import annotations

from collections import Counter


def describe_turns(others: Counter[int], waited: float, more: int) -> str:
    """The summary of a training: number of updates, staleness, and seconds that all ranks waited.

    `others`: number of updates by staleness, the number of other updates since the weights were read. `more`: further
    updates, of lost ranks.
    """
    by_lost = f", {more} more by ranks that were lost" if more else ""
    updates = sum(others.values())
    mean = sum(late * times for late, times in others.items()) / updates
    seen = 0
    for late in sorted(others):
        seen += others[late]
        if seen >= 0.99 * updates:
            break
    return (
        f"asynchronous: {updates} updates{by_lost}; staleness {mean:.2f} on average, {late} at the 99th percentile, at "
        f"most {max(others)}; {waited:.1f} s waited at the bound by all ranks together"
    )
