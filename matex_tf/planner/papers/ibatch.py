"""Parameters pulled in batches of layers during the forward pass: iBatch (Wang, Pi and Zhou, AAAI 2019).

A worker pulls the parameters of a batch of layers from a server while it computes the preceding batch. Symbols: C^i
seconds of layer i's forward pass; T_t^i seconds of its parameters' transfer; T_s seconds to start a pull. A plan has
boundaries 0 = l_0 < l_1 < ... < l_N = L: batch k is layers l_{k-1} + 1 to l_k. For example, the plan (0, 2, 5) has a
batch of layers 1 and 2, and a batch of layers 3 to 5. Equation 5 of the paper requires that each pull takes at least as
long as the computation of the preceding batch: the pull hides that computation. A pull of more layers saves start-ups,
and lets the computation of its layers begin later.

The two greedy algorithms are the paper's. `planner.buckets.find_best_plan` finds the best plan.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

Plan = tuple[int, ...]


@dataclass(frozen=True)
class Layers:
    """`compute` C^i and `transfer` T_t^i of each layer, and `start_up` T_s, in seconds."""

    compute: Sequence[float]
    transfer: Sequence[float]
    start_up: float

    def __post_init__(self) -> None:
        if not self.compute or len(self.compute) != len(self.transfer):
            raise ValueError(
                "layers: expected a time of transfer for each time of computation, of one layer or more; given "
                f"{len(self.transfer)} and {len(self.compute)}"
            )
        if min(*self.compute, *self.transfer, self.start_up) < 0:
            raise ValueError("layers: a time is below 0")

    @property
    def count(self) -> int:
        return len(self.compute)

    def computation(self, first: int, stop: int) -> float:
        """The sum of C^i over layers first + 1 to `stop`."""
        return self._compute_until[stop] - self._compute_until[first]

    def pull(self, first: int, stop: int) -> float:
        """T_s and the sum of T_t^i over layers first + 1 to `stop`."""
        return self.start_up + self._transfer_until[stop] - self._transfer_until[first]

    @functools.cached_property
    def _compute_until(self) -> list[float]:
        return [0.0, *itertools.accumulate(self.compute)]

    @functools.cached_property
    def _transfer_until(self) -> list[float]:
        return [0.0, *itertools.accumulate(self.transfer)]


def compute_end(layers: Layers, plan: Plan) -> float:
    """Seconds until the end of the forward pass, for any plan. A batch is computed after its pull and after the
    preceding batch.
    """
    pull_end = computation_end = 0.0
    for first, stop in itertools.pairwise(plan):
        pull_end += layers.pull(first, stop)
        computation_end = max(computation_end, pull_end) + layers.computation(first, stop)
    return computation_end


def plan_front_to_back(layers: Layers) -> Plan | None:
    """Algorithm 1; None if no first two batches satisfy equation 5.

    The first batch has the longest computation that the second pull hides. Each further batch has the shortest pull
    that takes at least as long as the computation of the batch before. If no pull does, which the paper does not
    define, the remaining layers form the last batch. Ties between pairs go to the shorter pulls.
    """
    count = layers.count
    pairs = [  # boundaries of the first two batches
        (first, second)
        for first in range(1, count)
        for second in range(first + 1, count + 1)
        if layers.pull(first, second) >= layers.computation(0, first)
    ]
    if not pairs:
        return None
    plan = [0, *min(pairs, key=lambda pair: (-layers.computation(0, pair[0]), layers.pull(0, pair[0]), pair[1]))]
    while plan[-1] < count:
        computation, start = layers.computation(*plan[-2:]), plan[-1]  # the computation of the last batch so far
        stops = [stop for stop in range(start + 1, count + 1) if layers.pull(start, stop) >= computation]
        plan.append(min(stops, key=lambda stop: layers.pull(start, stop), default=count))
    return tuple(plan)


def plan_back_to_front(layers: Layers) -> Plan | None:
    """Algorithm 2; None if no last two batches satisfy equation 5.

    It adds batches in front. Each has the longest computation that the pull of the batch behind it hides. If that pull
    hides no computation, the remaining layers form the first batch.
    """
    count = layers.count
    pairs = [  # boundaries in front of the last two batches
        (first, second)
        for second in range(1, count)
        for first in range(second)
        if layers.pull(second, count) >= layers.computation(first, second)
    ]
    if not pairs:
        return None
    plan = [*min(pairs, key=lambda pair: (-layers.computation(*pair), layers.computation(pair[1], count))), count]
    while plan[0] > 0:
        pull_seconds, stop = layers.pull(*plan[:2]), plan[0]  # the pull of the first batch so far
        firsts = [first for first in range(stop) if layers.computation(first, stop) <= pull_seconds]
        plan.insert(0, max(firsts, key=lambda first: layers.computation(first, stop), default=0))
    return tuple(plan)


def plan_greedy(layers: Layers) -> Plan:
    """The better plan of the two algorithms; a single pull if neither finds one."""
    plans = [plan for plan in (plan_front_to_back(layers), plan_back_to_front(layers)) if plan is not None]
    return min(plans or [plan_whole(layers)], key=lambda plan: compute_end(layers, plan))


def plan_whole(layers: Layers) -> Plan:
    """The default: a single pull, then the forward pass."""
    return (0, layers.count)


def plan_by_layer(layers: Layers) -> Plan:
    """One pull for each layer."""
    return tuple(range(layers.count + 1))
