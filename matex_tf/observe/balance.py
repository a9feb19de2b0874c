"""Finds the rank that the others wait for, the rank that waits least: for the profile, `matex top` and the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

MIN_IMBALANCE = 0.01
"""Ranks are balanced if the others wait for the slowest less than this fraction of a step."""
BALANCED = "the ranks are balanced: none delays the others by more than 1% of a step"


@dataclass(frozen=True)
class Step:
    """The times of a rank's training step, in seconds."""

    compute: float  # outside of collectives
    waiting: float  # for other ranks
    sums: float  # in collectives, without the waiting
    input: float = math.nan  # the part of `compute` that waits for a batch; NaN if it was not recorded

    @property
    def whole(self) -> float:
        return self.compute + self.waiting + self.sums


def sort_ranks(steps: Mapping[int, Step]) -> list[int]:
    """The ranks, first those that wait least; of ranks that wait alike, first those that compute longest."""
    return sorted(steps, key=lambda rank: (steps[rank].waiting, -steps[rank].compute))


def find_slowest(steps: Mapping[int, Step]) -> tuple[int, float] | None:
    """The rank that others wait for, and their mean extra wait in a step, in seconds; None if ranks are balanced."""
    if len(steps) < 2:
        return None
    slowest, *others = sort_ranks(steps)
    extra_wait = sum(steps[rank].waiting - steps[slowest].waiting for rank in others) / len(others)
    return (slowest, extra_wait) if extra_wait >= MIN_IMBALANCE * steps[slowest].whole else None
