"""Simulates steps of ranks that reduce their gradients together.

A rank computes, and reaches the collectives of its program (`simulator.program`) one after another. A collective
begins when the last rank has reached it, and ends on all ranks after its price (`Prices`). Without overlap, one sum of
all gradients follows the computation. With overlap, ranks continue to compute while a communication lane reduces
buckets of gradients (`planner.buckets`): one at a time, each as soon as it is ready on all ranks.

All ranks pass the same points of the program (collectives, and the times at which buckets are ready) in the same order,
and the lane never delays them. So no queue of events is needed: a step passes the points once, with an array of the
ranks' times.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from matex_tf.planner.simulator.program import Program

LEAST_FACTOR = 0.05
"""Noise never makes a computation faster than this factor."""
Note = Callable[..., None]
"""Called for a timeline with (activity, begin, end, lane=0, label="", size=0). `begin` and `end` are seconds, common to
all ranks or an array with the time of each rank. Lane 1 reduces buckets; `size` is in bytes. The activities are named
as in a measured run (`observe.timeline`): a "gap" is the time between two collectives, "exposed" the part of a gap in
which computation is over and sums are not, "meet" the wait for other ranks.
"""


@dataclass(frozen=True)
class Prices:
    """Seconds of collectives, from the arrival of the last rank."""

    buckets: Sequence[float]
    at_once: float  # one sum of all gradients, without buckets
    collectives: Sequence[float]  # each of `Program.collectives`


@dataclass(frozen=True)
class Disturbance:
    """How the computation of a rank in a step differs from the program: the product of three factors, each optional."""

    noise: float = 0.0
    """The standard deviation of a normal distribution with mean 1."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """Constant factors of ranks."""
    factors: Sequence[float] = ()
    """Measured steps over their median; one of these factors is drawn for each rank and step."""

    def draw_factor(self, rank: int, generator: random.Random) -> float:
        """The factor of a rank in one step."""
        factor = generator.choice(self.factors) if self.factors else 1.0
        if self.noise:
            factor *= max(LEAST_FACTOR, generator.gauss(1.0, self.noise))
        return factor * self.slow.get(rank, 1.0)


@dataclass(frozen=True)
class Result:
    """The simulated steps. Times are means in seconds: `step` = `compute` + `waiting` + `exposed`."""

    step: float
    compute: float
    """Of all ranks."""
    waiting: float
    """The computation of the slowest rank, less the mean computation."""
    exposed: float
    """Waiting of the slowest rank for collectives."""


def simulate_ranks(
    program: Program, ranks: int, steps: int, plan: Sequence[int] | None, prices: Prices,
    disturbance: Disturbance | None = None, seed: int = 1, note: Note | None = None,
) -> Result:  # fmt: skip
    """Simulate `steps` steps on `ranks` ranks. All ranks begin a step when the step before is reduced.

    Args:
        plan: boundaries of buckets (`buckets.Plan`: 0, 2, 5 are gradients 0 to 1, and 2 to 4) that are reduced during
            the computation; None: one sum after the computation.
        note: called with all events, for a timeline.
    """
    disturbance, note = disturbance or Disturbance(), note or (lambda *_, **__: None)
    generator = random.Random(seed)
    note("announcement", 0.0, 0.0, label="the first step")  # a timeline shows computation only after an update
    mean_seconds, max_seconds, end = [], [], 0.0
    for _ in range(steps):
        factors = np.array([disturbance.draw_factor(rank, generator) for rank in range(ranks)])
        mean_seconds.append(float(factors.mean()) * program.compute)
        max_seconds.append(float(factors.max()) * program.compute)
        end = _simulate_step(program, end, factors, plan, prices, note)
    step, compute, longest_compute = end / steps, fmean(mean_seconds), fmean(max_seconds)
    return Result(step, compute, longest_compute - compute, max(0.0, step - longest_compute))


def _simulate_step(
    program: Program, begin: float, factors: np.ndarray, plan: Sequence[int] | None, prices: Prices, note: Note
) -> float:
    """The end of the step that all ranks begin at `begin`, with the `factors` of their computation."""
    buckets = list(zip(plan, plan[1:])) if plan and program.sizes else []
    # Points are collectives and the last gradients of buckets: (seconds of computation before the point, whether it is
    # a collective, its number).
    points = [(collective.at, True, number) for number, collective in enumerate(program.collectives)]
    points += [(program.ready[stop - 1], False, number) for number, (_, stop) in enumerate(buckets)]
    # The time of each rank, and the time at which its current computation began; seconds of the program that are done.
    now = computing_since = np.full(len(factors), begin)
    lane_free, computed_seconds = begin, 0.0
    for seconds_before, is_collective, number in sorted(points, key=lambda point: point[0]):
        now = now + (seconds_before - computed_seconds) * factors
        computed_seconds = seconds_before
        if is_collective:
            collective, price = program.collectives[number], prices.collectives[number]
            note("gap", computing_since, now)
            end = _wait_for_all(now, price, collective.kind, collective.name, round(collective.bytes), note)
            now = computing_since = np.full(len(factors), end)
        else:
            first, stop = buckets[number]
            size = sum(program.sizes[first:stop])
            ready = np.maximum(now, lane_free)
            start = float(ready.max())
            note("own gradients", lane_free, ready, lane=1)
            note("meet", ready, start, lane=1)
            lane_free = start + prices.buckets[number]
            note("bucket", start, lane_free, lane=1, label=program.names[stop - 1], size=size)
            note("transfer", start, lane_free, lane=1, size=size)
    now = now + (program.compute - computed_seconds) * factors
    note("gap", computing_since, now)
    if not buckets:
        return _wait_for_all(now, prices.at_once, "update", "update", program.bytes, note)
    end = max(float(now.max()), lane_free)
    note("gap", now, end)
    note("exposed", now, end)
    note("announcement", end, end, label="update", size=program.bytes)
    return end


def _wait_for_all(arrivals: np.ndarray, price: float, activity: str, label: str, size: int, note: Note) -> float:
    """The end of a collective that each rank reaches at its time in `arrivals`, `price` seconds after the last rank."""
    begin = float(arrivals.max())
    note(activity, arrivals, begin + price, label=label, size=size)
    note("meet", arrivals, begin)
    note("transfer", begin, begin + price, size=size)
    return begin + price
