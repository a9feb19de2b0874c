"""Parameters pulled in batches of layers behind the forward pass: iBatch (Wang, Pi and Zhou, AAAI 2019).

Symbols: C^i seconds of layer i's forward pass; T_t^i seconds of its parameters' transfer; T_s seconds to start a pull.
A plan consists of boundaries 0 = l_0 < l_1 < ... < l_N = L: batch k is layers l_{k-1} + 1 to l_k.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from matex_tf.planner.papers.domain import Estimate, check_positive

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
        object.__setattr__(self, "_computed", [0.0, *itertools.accumulate(self.compute)])
        object.__setattr__(self, "_moved", [0.0, *itertools.accumulate(self.transfer)])

    @property
    def count(self) -> int:
        return len(self.compute)

    def computation(self, first: int, stop: int) -> float:
        """The sum of C^i over layers first + 1 to `stop`."""
        return self._computed[stop] - self._computed[first]  # type: ignore[attr-defined]

    def pull(self, first: int, stop: int) -> float:
        """T_s and the sum of T_t^i over layers first + 1 to `stop`."""
        return self.start_up + self._moved[stop] - self._moved[first]  # type: ignore[attr-defined]


def compute_end(layers: Layers, plan: Plan) -> float:
    """Seconds until the end of the forward pass, for any plan: a batch is computed after its pull and the preceding
    batch.
    """
    pulled = computed = 0.0
    for first, stop in itertools.pairwise(plan):
        pulled += layers.pull(first, stop)
        computed = max(computed, pulled) + layers.computation(first, stop)
    return computed


def execution_time(layers: Layers, plan: Plan) -> Estimate:
    """EXE1 + EXE2 + EXE3, equations 1 to 4; equal to `compute_end` if the plan satisfies equation 5, and too small
    otherwise.
    """
    batches = len(plan) - 1
    first, rest = layers.pull(0, plan[1]), layers.pull(plan[1], plan[-1]) - layers.start_up
    total = first + (batches - 1) * layers.start_up + rest + layers.computation(plan[-2], plan[-1])
    return Estimate(total, "" if hides(layers, plan) else "a pull ends before the computation behind which it hides")


def hides(layers: Layers, plan: Plan) -> bool:
    """Whether each pull takes at least as long as the computation of the preceding batch: equation 5."""
    batches = list(itertools.pairwise(plan))
    return all(layers.pull(*after) >= layers.computation(*batch) for batch, after in itertools.pairwise(batches))


def plan_front_to_back(layers: Layers) -> Plan | None:
    """Algorithm 1; None if no first two batches satisfy equation 5.

    The paper does not define the case without a valid next boundary; here the remaining layers form the last batch.
    """
    count = layers.count
    pairs = [
        (first, second)
        for first in range(1, count)
        for second in range(first + 1, count + 1)
        if layers.pull(first, second) >= layers.computation(0, first)
    ]
    if not pairs:
        return None
    plan = [0, *min(pairs, key=lambda pair: (-layers.computation(0, pair[0]), layers.pull(0, pair[0]), pair[1]))]
    while plan[-1] < count:
        hidden, last = layers.computation(*plan[-2:]), plan[-1]
        fitting = [stop for stop in range(last + 1, count + 1) if layers.pull(last, stop) >= hidden]
        plan.append(min(fitting, key=lambda stop: layers.pull(last, stop)) if fitting else count)
    return tuple(plan)


def plan_back_to_front(layers: Layers) -> Plan | None:
    """Algorithm 2; None if no last two batches satisfy equation 5. The remaining layers form the first batch."""
    count = layers.count
    pairs = [
        (first, second)
        for second in range(1, count)
        for first in range(second)
        if layers.pull(second, count) >= layers.computation(first, second)
    ]
    if not pairs:
        return None
    plan = [*min(pairs, key=lambda pair: (-layers.computation(*pair), layers.computation(pair[1], count))), count]
    while plan[0] > 0:
        longest, stop = layers.pull(*plan[:2]), plan[0]
        fitting = [first for first in range(stop) if layers.computation(first, stop) <= longest]
        plan.insert(0, max(fitting, key=lambda first: layers.computation(first, stop)) if fitting else 0)
    return tuple(plan)


def plan_greedy(layers: Layers) -> Plan:
    """The better plan of the two algorithms; a single pull if neither finds one."""
    plans = [plan for plan in (plan_front_to_back(layers), plan_back_to_front(layers)) if plan is not None]
    return min(plans or [plan_whole(layers)], key=lambda plan: compute_end(layers, plan))


def plan_best(layers: Layers) -> Plan:
    """The plan with the least `compute_end`, by dynamic programming over boundary and number of batches: O(L^3).

    A known number of batches determines the end of each pull, so only ends of computation are compared.
    """
    count = layers.count
    ends = [0.0] + [math.inf] * count
    starts_by_batches: list[list[int]] = []
    best_end, batches = math.inf, 0
    for count_of_batches in range(1, count + 1):
        new_ends, starts = [math.inf] * (count + 1), [0] * (count + 1)
        for stop in range(count_of_batches, count + 1):
            pulled = layers.pull(0, stop) + (count_of_batches - 1) * layers.start_up
            new_ends[stop], starts[stop] = min(
                (max(ends[start], pulled) + layers.computation(start, stop), start)
                for start in range(count_of_batches - 1, stop)
            )
        ends = new_ends
        starts_by_batches.append(starts)
        if ends[count] < best_end:
            best_end, batches = ends[count], count_of_batches
    plan = [count]
    for starts in reversed(starts_by_batches[:batches]):
        plan.append(starts[plan[-1]])
    return tuple(reversed(plan))


def plan_whole(layers: Layers) -> Plan:
    """The default: a single pull, then the forward pass."""
    return (0, layers.count)


def plan_by_layer(layers: Layers) -> Plan:
    """One pull for each layer."""
    return tuple(range(layers.count + 1))


def speedup_with_pulls_hidden(nodes: int, default: float) -> float:
    """Speedup on `nodes` if all pulls are hidden, from the speedup `default` without hiding.

    Our model: a pull takes as long as a push; together they take the time that `default` lacks to `nodes`; pushes are
    exposed.
    """
    _check_speedup(nodes, default)
    return nodes / (1 + (nodes / default - 1) / 2)


def communication_share(nodes: int, speedup: float) -> float:
    """Time of pulls and pushes on `nodes`, relative to one node's step, if none is hidden."""
    _check_speedup(nodes, speedup)
    return nodes / speedup - 1


def speedup_with_sparse_gradients(nodes: int, pulls: float, forward: float) -> float:
    """Speedup on `nodes` if pushes take no time and pulls hide behind the forward pass; both relative to a node's step.

    Our model: pull time beyond the forward pass is exposed.
    """
    check_positive("speedup_with_sparse_gradients", nodes=nodes, pulls=pulls, forward=forward)
    return nodes / (1 + max(0.0, pulls - forward))


def ceiling(nodes: int, default: float, forward: float) -> float:
    """The largest speedup from hiding pulls behind the forward pass, which is the fraction `forward` of a node's step.

    Our model: pulls can hide only behind the forward pass.
    """
    _check_speedup(nodes, default)
    if not 0 <= forward <= 1:
        raise ValueError(f"ceiling: expected the forward pass to be a part from 0 to 1 of the step; given {forward}")
    return nodes / max(1.0, nodes / default - forward)


def forward_share(nodes: int, default: float, reached: float) -> Estimate:
    """The smallest fraction of the forward pass in a step for a speedup `reached`: the inverse of `ceiling`."""
    _check_speedup(nodes, default)
    _check_speedup(nodes, reached)
    share = nodes / default - nodes / reached
    return Estimate(share, "a forward pass is no more than the whole step" if share > 1 else "")


def start_ups(nodes: int, default: float, layerwise: float) -> float:
    """L T_s relative to a node's step, fitted to the speedup `layerwise` of layer by layer.

    Our model: layer by layer hides pulls as completely as iBatch does, and adds a start for each layer.
    """
    return nodes / layerwise - nodes / speedup_with_pulls_hidden(nodes, default)


def _check_speedup(nodes: int, speedup: float) -> None:
    check_positive("speedup", nodes=nodes, speedup=speedup)
    if speedup > nodes:
        raise ValueError(f"speedup: expected at most {nodes} on {nodes} nodes; given {speedup}")
