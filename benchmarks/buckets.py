"""How good plans of buckets are: `python benchmarks/buckets.py [--cases 300]`.

Gradients become ready one after another, and their transfers, each of which costs a start-up and a time for each byte,
go through one link in that order. A plan is which gradients share a transfer; what counts is when the last is over. The
best plan is the engine's, found by dynamic programming; on up to 12 gradients it is compared with every plan there is.
Beside it stand the greedy plan of iBatch (Wang, Pi and Zhou, AAAI 2019), the better of its two passes, as restated for
gradients by turning time around; buckets of 25 MiB, as libraries have them; all gradients in one; and each by itself.
Printed is how much later than the best plan's a plan's last transfer is over, in percent of the time since the step
began.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from matex_tf import ops

Plan = list[int]
MIB = 2.0**20


def best(ready: np.ndarray, sizes: np.ndarray, start_up: float, byte: float) -> Plan:
    """The engine's plan: the boundaries of its buckets, 0 and the number of gradients among them."""
    count = len(ready)
    boundaries, end = (ctypes.c_int * (count + 1))(), ctypes.c_double()
    doubles = ctypes.c_double * count
    found = ops.get_library().c.matex_buckets(
        count, doubles(*ready), doubles(*sizes), start_up, byte, boundaries, ctypes.byref(end)
    )
    return list(boundaries[:found])


def end_of(plan: Plan, ready: np.ndarray, sizes: np.ndarray, start_up: float, byte: float) -> float:
    """When the last transfer of `plan` is over."""
    free = 0.0
    for first, past in itertools.pairwise(plan):
        free = max(free, ready[past - 1]) + start_up + byte * sizes[first:past].sum()
    return free


def every(count: int) -> Iterator[Plan]:
    """Every way to cut `count` gradients into consecutive buckets."""
    for cuts in itertools.product([False, True], repeat=count - 1):
        yield [0, *[place + 1 for place, cut in enumerate(cuts) if cut], count]


def greedy(ready: np.ndarray, sizes: np.ndarray, start_up: float, byte: float) -> Plan:
    """iBatch's plan: time runs backwards, so that transfers come before the computation of what they bring."""
    count = len(ready)
    compute = np.diff(ready, prepend=0.0)[::-1]
    transfer = byte * sizes[::-1]
    before = np.concatenate([[0.0], np.cumsum(compute)])
    moved = np.concatenate([[0.0], np.cumsum(transfer)])

    def computation(first: int, past: int) -> float:
        return before[past] - before[first]

    def communication(first: int, past: int) -> float:
        return start_up + moved[past] - moved[first]

    found = (_forward(count, computation, communication), _backward(count, computation, communication))
    plans = [[0, count], *([count - boundary for boundary in reversed(plan)] for plan in found if plan is not None)]
    return min(plans, key=lambda plan: end_of(plan, ready, sizes, start_up, byte))


def _forward(count, computation, communication) -> Plan | None:
    """The first two boundaries first, then one after another (the paper's algorithm 1)."""
    pairs = [
        (first, second)
        for first in range(1, count)
        for second in range(first + 1, count + 1)
        if communication(first, second) >= computation(0, first)
    ]
    if not pairs:
        return None
    first, second = min(pairs, key=lambda pair: (-computation(0, pair[0]), communication(0, pair[0]), pair[1]))
    plan = [0, first, second]
    while plan[-1] < count:
        hidden = computation(plan[-2], plan[-1])
        fitting = [past for past in range(plan[-1] + 1, count + 1) if communication(plan[-1], past) >= hidden]
        plan.append(min(fitting, key=lambda past: communication(plan[-1], past)) if fitting else count)
    return plan


def _backward(count, computation, communication) -> Plan | None:
    """The last two boundaries first, then one before another (the paper's algorithm 2)."""
    pairs = [
        (first, second)
        for second in range(1, count)
        for first in range(second)
        if communication(second, count) >= computation(first, second)
    ]
    if not pairs:
        return None
    first, second = min(pairs, key=lambda pair: (-computation(*pair), computation(pair[1], count)))
    plan = [first, second, count]
    while plan[0] > 0:
        most = communication(plan[0], plan[1])
        fitting = [begin for begin in range(plan[0]) if computation(begin, plan[0]) <= most]
        plan.insert(0, max(fitting, key=lambda begin: computation(begin, plan[0])) if fitting else 0)
    return plan


def fixed(sizes: np.ndarray, most: float) -> Plan:
    """A bucket is closed once it holds `most` bytes."""
    plan, held = [0], 0.0
    for index, size in enumerate(sizes):
        held += size
        if held >= most:
            plan.append(index + 1)
            held = 0.0
    return plan if plan[-1] == len(sizes) else [*plan, len(sizes)]


def cases(
    random: np.random.Generator, count: int, number: int
) -> Iterator[tuple[np.ndarray, np.ndarray, float, float]]:
    """Gradients of 4 KiB to 16 MiB whose computation takes a tenth to ten times their transfer, on links of 1 Gbit/s
    to 5 GB/s with a start-up of 5 to 500 us.
    """
    for _ in range(number):
        sizes = np.exp(random.uniform(np.log(4096), np.log(16 * MIB), count))
        byte = 1 / np.exp(random.uniform(np.log(0.125e9), np.log(5e9)))
        start_up = np.exp(random.uniform(np.log(5e-6), np.log(5e-4)))
        whole = (start_up + byte * sizes.sum()) * 10.0 ** random.uniform(-1, 1)
        steps = random.exponential(1.0, count)
        yield np.cumsum(steps) / steps.sum() * whole, sizes, start_up, byte


def line(name: str, values: Sequence[float]) -> str:
    values = np.asarray(values)
    optimal = np.mean(values < 1e-6)
    figures = 100 * values.mean(), 100 * np.quantile(values, 0.9), 100 * values.max()
    return f"  {name:22}" + "".join(f"{value:12.2f}" for value in figures) + f"{100 * optimal:12.0f}%"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300)
    number = parser.parse_args().cases
    random = np.random.default_rng(1)
    print(f"{'later than the best, %':24}{'mean':>12}{'9th of ten':>12}{'most':>12}{'are best':>13}")
    for count in (8, 12, 60, 161):
        found: dict[str, list[float]] = {}
        for case in cases(random, count, number if count > 12 else max(number // 10, 1)):
            sizes = case[1]
            plan = best(*case)
            end = end_of(plan, *case)
            plans = {
                "iBatch's greedy plan": greedy(*case),
                "buckets of 25 MiB": fixed(sizes, 25 * MIB),
                "buckets of 1 MiB": fixed(sizes, MIB),
                "one bucket": [0, count],
                "each by itself": list(range(count + 1)),
            }
            if count <= 12:
                others = (end_of(one, *case) for one in every(count))
                found.setdefault("every plan's best", []).append(end / min(others) - 1)
            for name, one in plans.items():
                found.setdefault(name, []).append(end_of(one, *case) / end - 1)
        print(f"{count} gradients, {len(found['one bucket'])} cases")
        for name, values in found.items():
            print(line(name, values))
    return 0


if __name__ == "__main__":
    sys.exit(main())
