"""The choice of buckets against the best of all there are."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest

from matex_tf import ops
from matex_tf.planner import buckets


def chosen(ready, sizes, start_up, byte):
    """(boundaries, end) of the engine."""
    count = len(ready)
    boundaries, end = (ctypes.c_int * (count + 1))(), ctypes.c_double()
    found = ops.get_library().c.matex_buckets(
        count,
        (ctypes.c_double * count)(*ready),
        (ctypes.c_double * count)(*sizes),
        start_up,
        byte,
        boundaries,
        ctypes.byref(end),
    )
    return list(boundaries[:found]), end.value


def end_of(boundaries, ready, sizes, start_up, byte):
    """When the transfers of these buckets are over, as one tells it to a person."""
    free = 0.0
    for first, past in itertools.pairwise(boundaries):
        start = max(free, max(ready[:past]))
        free = start + start_up + byte * sum(sizes[first:past])
    return free


def every(count):
    """Every way to cut `count` gradients into consecutive buckets."""
    for cuts in itertools.product([False, True], repeat=count - 1):
        yield [0, *[place + 1 for place, cut in enumerate(cuts) if cut], count]


def test_none_is_better():
    random = np.random.default_rng(1)
    for _ in range(200):
        count = int(random.integers(1, 10))
        ready = np.cumsum(random.exponential(1.0, count))
        sizes = random.choice([1.0, 10.0, 200.0], count)
        start_up, byte = random.choice([0.01, 0.5, 3.0]), random.choice([0.001, 0.02])
        boundaries, end = chosen(ready, sizes, start_up, byte)
        assert boundaries[0] == 0 and boundaries[-1] == count and boundaries == sorted(set(boundaries))
        best = min(end_of(one, ready, sizes, start_up, byte) for one in every(count))
        assert end == pytest.approx(end_of(boundaries, ready, sizes, start_up, byte)) == pytest.approx(best)


def test_the_planners_plan_is_as_good():
    """It has its own, which needs no compiled ops."""
    random = np.random.default_rng(2)
    for count in (1, 2, 9, 60):
        for _ in range(10):
            ready = random.exponential(1.0, count).cumsum() + random.normal(0, 0.5, count)
            sizes = random.choice([1.0, 10.0, 200.0], count)
            start_up, byte = random.choice([0.01, 0.5, 3.0]), random.choice([0.001, 0.02])

            def price(size):
                return start_up + byte * size  # noqa: B023

            end = chosen(ready, sizes, start_up, byte)[1]
            plan = buckets.find_best_plan(ready.tolist(), sizes.tolist(), price)
            assert buckets.compute_plan_end(plan, ready.tolist(), sizes.tolist(), price) == pytest.approx(end)


def test_plain_cases():
    ready = [1.0, 2.0, 3.0, 4.0]
    # A transfer costs nothing to start: each as it comes. It costs much: all at the end.
    assert chosen(ready, [1.0] * 4, 0.0, 0.1)[0] == [0, 1, 2, 3, 4]
    assert chosen(ready, [1.0] * 4, 9.0, 0.1)[0] == [0, 4]
