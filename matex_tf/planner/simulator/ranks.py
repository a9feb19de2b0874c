"""Event simulation of ranks that reduce their gradients together.

A rank computes, and reaches the collectives of its program (`simulator.program`) one after another. A collective
begins when the last rank has reached it, and ends on all ranks after its price (`Prices`). Without overlap, one sum of
all gradients follows the computation. With overlap, ranks continue to compute while a communication lane reduces
buckets of gradients (`planner.buckets`): one at a time, each as soon as it is ready on all ranks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from matex_tf import arguments
from matex_tf.planner.events import Events
from matex_tf.planner.simulator.program import Program

_LEAST_FACTOR = 0.05  # noise never makes a computation faster than this

_Action = Callable[[int, int, int], None]
"""Called with (rank, index among the rank's actions, number of the gradient or collective)."""

Note = Callable[[int, str, int, float, float, str, int], None]
"""Called with (rank, activity, lane, begin, end, label, bytes) of each event for a timeline; lane 1 reduces buckets."""


@dataclass(frozen=True)
class Prices:
    """Seconds of collectives: each bucket, one sum of all gradients, and each other collective."""

    buckets: Sequence[float]
    at_once: float
    meetings: Sequence[float]


@dataclass(frozen=True)
class Disturbance:
    """Factors of the computation, which are multiplied for each rank and step."""

    noise: float = 0.0
    """The standard deviation of a normal distribution with mean 1."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """Constant factors of ranks."""
    factors: Sequence[float] = ()
    """Factors of measured steps, one of which is drawn."""


@dataclass
class Result:
    """The simulated steps, in seconds."""

    ends: list[float]
    """The end of each step, on all ranks."""
    compute: list[float]
    """The mean computation of a rank in each step."""
    longest: list[float]
    """The longest computation of a rank in each step."""
    events: int = 0
    """The number of events."""

    @property
    def step(self) -> float:
        """Mean seconds of a step."""
        return self.ends[-1] / len(self.ends)

    @property
    def mean_compute(self) -> float:
        return sum(self.compute) / len(self.compute)

    @property
    def waiting(self) -> float:
        """Mean difference in seconds between the slowest rank's computation and the mean computation."""
        return sum(self.longest) / len(self.longest) - self.mean_compute

    @property
    def exposed(self) -> float:
        """Mean seconds of a step in which even the slowest rank waits for collectives."""
        return max(0.0, self.step - self.mean_compute - self.waiting)


def simulate_ranks(
    program: Program, ranks: int, steps: int, plan: Sequence[int] | None, prices: Prices,
    disturbance: Disturbance | None = None, seed: int = 1, note: Note | None = None,
) -> Result:  # fmt: skip
    """Simulate `steps` steps on `ranks` ranks.

    Args:
        plan: boundaries of buckets that are reduced during the computation; None: one sum after the computation.
        note: called with all events of each rank, for a timeline.
    """
    ranks = arguments.check_whole_number("simulate", "ranks", ranks)
    steps = arguments.check_whole_number("simulate", "steps", steps)
    return _Simulation(program, ranks, steps, plan, prices, disturbance or Disturbance(), seed, note).run_steps()


class _Simulation:
    """The events of `simulate_ranks`. All ranks begin a step at the same time, when the last bucket is reduced."""

    def __init__(
        self, program: Program, ranks: int, steps: int, plan: Sequence[int] | None, prices: Prices,
        disturbance: Disturbance, seed: int, note: Note | None,
    ):  # fmt: skip
        self.events, self.random = Events(), random.Random(seed)
        self.program, self.ranks, self.steps, self.prices = program, ranks, steps, prices
        self.disturbance, self.note = disturbance, note
        self.overlaps = plan is not None and bool(program.sizes)
        self.plan = tuple(plan or ())
        # A rank's actions in a step by time: (seconds from the start, action, number of its gradient or collective).
        actions: list[tuple[float, _Action, int]] = [
            (meeting.at, self.begin_collective, item) for item, meeting in enumerate(program.meetings)
        ]
        if self.overlaps:
            actions += [(at, self.note_gradient, item) for item, at in enumerate(program.ready)]
        self.actions = sorted(actions, key=lambda action: action[0])
        self.actions.append((program.compute, self.end_compute, 0))
        self.bucket_of_last_gradient = {stop - 1: bucket for bucket, stop in enumerate(self.plan[1:])}
        self.factor = [1.0] * ranks  # of each rank's computation in this step
        self.computing_since = [0.0] * ranks  # start of the current interval of computation, for a timeline
        self.bucket_ready_at = [[0.0] * ranks for _ in self.plan[1:]]  # for each bucket and rank
        self.lane_free = 0.0  # the end of the last bucket
        self.arrival_times = [[0.0] * ranks for _ in program.meetings]  # for each collective and rank
        self.result = Result([], [], [])

    def run_steps(self) -> Result:
        if self.note:
            for rank in range(self.ranks):  # a timeline shows the computation of a step only after an update
                self.note(rank, "announcement", 0, 0.0, 0.0, "the first step", 0)
        self.begin_step()
        self.events.run_events()
        self.result.events = self.events.count
        return self.result

    def begin_step(self) -> None:
        """Begin a step on all ranks."""
        now, act = self.events.now, self.events.schedule_act
        self.arrived_counts = [0] * len(self.prices.meetings)  # for each collective, the ranks that have reached it
        self.ready_counts = [0] * (len(self.plan) - 1)  # for each bucket, the ranks that have its gradients
        self.next_bucket, self.lane_is_busy, self.finished_ranks = 0, False, 0
        self.compute_ends = [0.0] * self.ranks
        offset, first, item = self.actions[0]
        for rank in range(self.ranks):
            factor = self.factor[rank] = self.draw_factor(rank)
            self.computing_since[rank] = now
            act(now + offset * factor, first, rank, 0, item)
        computed = [factor * self.program.compute for factor in self.factor]
        self.result.compute.append(sum(computed) / self.ranks)
        self.result.longest.append(max(computed))

    def draw_factor(self, rank: int) -> float:
        disturbance = self.disturbance
        factor = self.random.choice(disturbance.factors) if disturbance.factors else 1.0
        if disturbance.noise:
            factor *= max(_LEAST_FACTOR, self.random.gauss(1.0, disturbance.noise))
        return factor * disturbance.slow.get(rank, 1.0)

    def schedule_next(self, rank: int, index: int) -> None:
        """Schedule the action of the rank that follows its action number `index`."""
        offset, action, item = self.actions[index + 1]
        delay = (offset - self.actions[index][0]) * self.factor[rank]
        self.events.schedule_act(self.events.now + delay, action, rank, index + 1, item)

    def note_gradient(self, rank: int, index: int, item: int) -> None:
        """Gradient `item` of the rank is ready. With the last gradient of a bucket, the bucket is."""
        bucket = self.bucket_of_last_gradient.get(item)
        if bucket is not None:
            self.bucket_ready_at[bucket][rank] = self.events.now
            self.ready_counts[bucket] += 1
            if self.ready_counts[bucket] == self.ranks:
                self.take_bucket()
        self.schedule_next(rank, index)

    def take_bucket(self) -> None:
        """Start the next bucket, if it is ready on all ranks and the lane is free."""
        bucket = self.next_bucket
        if self.lane_is_busy or bucket == len(self.ready_counts) or self.ready_counts[bucket] < self.ranks:
            return
        self.lane_is_busy = True
        begin, end = self.events.now, self.events.now + self.prices.buckets[bucket]
        if self.note:
            first, stop = self.plan[bucket : bucket + 2]
            label, size = self.program.names[stop - 1], sum(self.program.sizes[first:stop])
            for rank in range(self.ranks):
                ready = max(self.lane_free, self.bucket_ready_at[bucket][rank])
                self.note(rank, "own gradients", 1, self.lane_free, ready, "", 0)
                self.note(rank, "meet", 1, ready, begin, "", 0)
                self.note(rank, "bucket", 1, begin, end, label, size)
                self.note(rank, "transfer", 1, begin, end, "", size)
        self.events.schedule_act(end, self.end_transfer)

    def end_transfer(self) -> None:
        self.lane_is_busy, self.lane_free = False, self.events.now
        self.next_bucket += 1
        self.take_bucket()
        self.finish_step()

    def begin_collective(self, rank: int, index: int, item: int) -> None:
        """A rank reaches a collective on the computing thread."""
        self.compute_until_now(rank)
        self.arrival_times[item][rank] = self.events.now
        self.arrived_counts[item] += 1
        if self.arrived_counts[item] == self.ranks:
            end = self.events.now + self.prices.meetings[item]
            self.events.schedule_act(end, self.end_collective, index, item, self.events.now)

    def end_collective(self, index: int, item: int, begin: float) -> None:
        """Collective `item`, which the last rank reached at `begin`, ends on all ranks."""
        for rank in range(self.ranks):
            if self.note:
                meeting, arrived_at = self.program.meetings[item], self.arrival_times[item][rank]
                self.note_collective(rank, meeting.kind, arrived_at, begin, meeting.name, round(meeting.bytes))
            self.computing_since[rank] = self.events.now
            self.schedule_next(rank, index)

    def end_compute(self, rank: int, index: int, item: int) -> None:
        """The rank has computed the step. Without overlap, the last rank begins the sum of all gradients."""
        self.compute_until_now(rank)
        self.compute_ends[rank] = self.events.now
        self.finished_ranks += 1
        if self.finished_ranks == self.ranks and not self.overlaps and self.program.sizes:
            self.events.schedule_act(self.events.now + self.prices.at_once, self.finish_step)
        else:
            self.finish_step()

    def finish_step(self) -> None:
        """End the step, if everything is computed and reduced."""
        if self.finished_ranks < self.ranks or (self.overlaps and self.next_bucket < len(self.ready_counts)):
            return
        now = self.events.now
        if self.note:
            begin = now - self.prices.at_once
            for rank in range(self.ranks):
                if self.overlaps:
                    self.note(rank, "gap", 0, self.compute_ends[rank], now, "", 0)
                    self.note(rank, "exposed", 0, self.compute_ends[rank], now, "", 0)
                    self.note(rank, "announcement", 0, now, now, "update", self.program.bytes)
                else:
                    self.note_collective(rank, "update", self.compute_ends[rank], begin, "update", self.program.bytes)
        self.result.ends.append(now)
        if len(self.result.ends) < self.steps:
            self.begin_step()

    def compute_until_now(self, rank: int) -> None:
        """Record that the rank has computed since `computing_since`."""
        if self.note:
            self.note(rank, "gap", 0, self.computing_since[rank], self.events.now, "", 0)

    def note_collective(self, rank: int, activity: str, arrived_at: float, begin: float, label: str, size: int) -> None:
        """Record a collective that the rank reached at `arrived_at`, and that lasts from `begin` until now."""
        assert self.note is not None
        now = self.events.now
        self.note(rank, activity, 0, arrived_at, now, label, size)
        self.note(rank, "meet", 0, arrived_at, begin, "", 0)
        self.note(rank, "transfer", 0, begin, now, "", size)
