"""Bucket plans: which gradients are reduced together in one transfer.

A plan is a tuple of boundaries: with (0, 2, 5), bucket 0 has gradients 0 and 1, and bucket 1 has gradients 2 to 4.
Gradients become ready one after another. Their buckets are transferred one at a time, in the same order: a large bucket
saves start-up costs, and a small one begins early.

`find_best_plan` is exact; the engine and `planner.predict` use this method. `find_greedy_plan` is the method of the
paper iBatch (`papers/ibatch.py`), and never better. The simulator has it (`buckets=ibatch`), and also buckets of a
fixed size and one bucket for each gradient, to show what they would cost.
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
MAX_GRADIENTS = 128
"""With more gradients, neighbours are merged before buckets are chosen, because planning takes quadratic time."""


def sample_price(price: Price, max_bytes: float) -> Price:
    """Approximate `price` up to `max_bytes` by linear interpolation: planning evaluates it thousands of times."""
    points = [0.0, *(2 ** (i / 2) for i in range(ceil(2 * log2(max(max_bytes, 2.0))) + 1))]  # 0, 1, 1.4, 2, ...
    return MeasuredLink(points, [price(point) for point in points]).estimate_message


def join_neighbours(ready: Sequence[float], sizes: Sequence[float]) -> tuple[list[float], list[float]]:
    """Merge consecutive gradients to at most `MAX_GRADIENTS`. Returns (ready times, sizes)."""
    group_size = ceil(len(sizes) / MAX_GRADIENTS) or 1
    starts = range(0, len(sizes), group_size)
    return [max(ready[i : i + group_size]) for i in starts], [sum(sizes[i : i + group_size]) for i in starts]


def find_best_plan(ready: Sequence[float], sizes: Sequence[float], price: Price) -> Plan:
    """The plan whose last transfer ends first, by dynamic programming over the number of gradients.

    The engine has the same algorithm (ops/src/engine/layout/buckets.cc). This function needs no compiled ops, and
    accepts any price of a transfer.

    Args:
        ready: the time in seconds at which each gradient is ready.
        sizes: the bytes of each gradient.
    """
    ready_in_order, cumulated_bytes = _compute_ready_times(ready), [0.0, *itertools.accumulate(sizes)]
    # Entry n is about the first n gradients: the earliest end of their transfers, and the first gradient of the last
    # bucket in that plan. The next entry tries all starts of its last bucket.
    ends, bucket_starts = [0.0], [0]
    for stop in range(1, len(sizes) + 1):
        end, start = min(
            (max(ends[start], ready_in_order[stop - 1]) + price(cumulated_bytes[stop] - cumulated_bytes[start]), start)
            for start in range(stop)
        )
        ends.append(end)
        bucket_starts.append(start)
    plan = [len(sizes)]  # boundaries, from the end to the beginning
    while plan[-1]:
        plan.append(bucket_starts[plan[-1]])
    return tuple(reversed(plan))


def find_greedy_plan(ready: Sequence[float], sizes: Sequence[float], price: Price) -> Plan:
    """The best of iBatch's two plans and of one bucket, with time reversed.

    iBatch pulls parameters before the computation that needs them; gradients are transferred after their computation.
    In reversed time a gradient's transfer comes before its computation, so the last gradient becomes the first layer.
    """
    ready_in_order, start_up = _compute_ready_times(ready), price(0.0)
    compute_times = [later - earlier for earlier, later in itertools.pairwise([0.0, *ready_in_order])]
    transfer_times = [max(0.0, price(size) - start_up) for size in sizes]
    layers = ibatch.Layers(compute_times[::-1], transfer_times[::-1], start_up)
    reversed_plans = (ibatch.plan_whole(layers), ibatch.plan_front_to_back(layers), ibatch.plan_back_to_front(layers))
    plans = [tuple(len(sizes) - boundary for boundary in reversed(plan)) for plan in reversed_plans if plan]
    return min(plans, key=lambda plan: compute_plan_end(plan, ready, sizes, price))


def plan_by_size(sizes: Sequence[float], bucket_bytes: float) -> Plan:
    """A plan that closes a bucket once it has `bucket_bytes` bytes; with 0 bytes each gradient has its own bucket."""
    plan, collected = [0], 0.0
    for stop, size in enumerate(sizes, 1):
        collected += size
        if collected >= bucket_bytes or stop == len(sizes):
            plan.append(stop)
            collected = 0.0
    return tuple(plan)


def compute_plan_end(plan: Plan, ready: Sequence[float], sizes: Sequence[float], price: Price) -> float:
    """The time at which the last transfer of `plan` ends."""
    ready_in_order, end = _compute_ready_times(ready), 0.0
    for start, stop in itertools.pairwise(plan):
        end = max(end, ready_in_order[stop - 1]) + price(math.fsum(sizes[start:stop]))
    return end


def _compute_ready_times(ready: Sequence[float]) -> list[float]:
    """For each gradient, the time at which it and all previous gradients are ready: transfers keep their order."""
    return list(itertools.accumulate(ready, max))
