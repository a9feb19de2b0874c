"""Bucket plans: which gradients are reduced together. A plan is a tuple of boundaries, from 0 to the number of
gradients.

Gradients become ready one after another; their transfers use one lane, in the same order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from math import ceil, log2

from matex_tf.costs.collectives import MeasuredLink
from matex_tf.planner.papers import ibatch

Plan = tuple[int, ...]
Price = Callable[[float], float]
"""Seconds of a transfer, by its bytes."""


MOST_GRADIENTS = 128
"""With more gradients, neighbours are merged before buckets are chosen."""


def sample_price(price: Price, most: float) -> Price:
    """Approximate `price` up to `most` bytes by linear interpolation, because planning evaluates it
    thousands of times.
    """
    points = [0.0, *(2 ** (at / 2) for at in range(ceil(2 * log2(max(most, 2.0))) + 1))]
    return MeasuredLink(points, [price(point) for point in points]).estimate_message


def join_neighbours(ready: Sequence[float], sizes: Sequence[float]) -> tuple[list[float], list[float]]:
    """Merge consecutive gradients to at most `MOST_GRADIENTS`. Returns (ready times, sizes)."""
    together = ceil(len(sizes) / MOST_GRADIENTS) or 1
    starts = range(0, len(sizes), together)
    return [max(ready[i : i + together]) for i in starts], [sum(sizes[i : i + together]) for i in starts]


def find_best_plan(ready: Sequence[float], sizes: Sequence[float], price: Price) -> Plan:
    """The plan whose last transfer ends first.

    The engine uses the same dynamic programming (ops/src/engine/layout/buckets.cc). This function needs no compiled
    ops, and accepts any price of a transfer.
    """
    last, held = _compute_ready_times(ready), [0.0, *itertools.accumulate(sizes)]
    ends, before = [0.0], [0]
    for past in range(1, len(sizes) + 1):
        end, first = min(
            (max(ends[first], last[past - 1]) + price(held[past] - held[first]), first) for first in range(past)
        )
        ends.append(end)
        before.append(first)
    plan = [len(sizes)]
    while plan[-1]:
        plan.append(before[plan[-1]])
    return tuple(reversed(plan))


def find_greedy_plan(ready: Sequence[float], sizes: Sequence[float], price: Price) -> Plan:
    """iBatch's plan with time reversed: iBatch pulls before the computation that needs the parameters; sums come after
    it.
    """
    last, start_up = _compute_ready_times(ready), price(0.0)
    compute = [later - earlier for earlier, later in itertools.pairwise([0.0, *last])]
    layers = ibatch.Layers(compute[::-1], [max(0.0, price(size) - start_up) for size in reversed(sizes)], start_up)
    mirrored = (ibatch.plan_whole(layers), ibatch.plan_front_to_back(layers), ibatch.plan_back_to_front(layers))
    plans = [tuple(len(sizes) - boundary for boundary in reversed(plan)) for plan in mirrored if plan]
    return min(plans, key=lambda plan: compute_plan_end(plan, ready, sizes, price))


def plan_by_size(sizes: Sequence[float], most: float) -> Plan:
    """A plan that closes a bucket once it has `most` bytes."""
    plan, held = [0], 0.0
    for past, size in enumerate(sizes, 1):
        held += size
        if held >= most or past == len(sizes):
            plan.append(past)
            held = 0.0
    return tuple(plan)


def plan_each(sizes: Sequence[float]) -> Plan:
    """A plan with one bucket for each gradient."""
    return tuple(range(len(sizes) + 1))


def compute_plan_end(plan: Plan, ready: Sequence[float], sizes: Sequence[float], price: Price) -> float:
    """The time at which the last transfer of `plan` ends."""
    last, free = _compute_ready_times(ready), 0.0
    for first, past in itertools.pairwise(plan):
        free = max(free, last[past - 1]) + price(math.fsum(sizes[first:past]))
    return free


def _compute_ready_times(ready: Sequence[float]) -> list[float]:
    """For each gradient, the time at which it and all previous gradients are ready: transfers keep their order."""
    return list(itertools.accumulate(ready, max))
