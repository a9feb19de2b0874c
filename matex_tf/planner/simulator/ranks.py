"""Event simulation of ranks that reduce their gradients together.

A collective starts when the last rank has arrived and its lane is free; it ends on all ranks after its price. With
overlap, ranks continue to compute while the communication lane reduces buckets in their order.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from matex_tf import arguments
from matex_tf.planner.events import Events
from matex_tf.planner.simulator.program import Program

_LEAST_FACTOR = 0.05

_Action = Callable[[int, int, int], None]
"""An action of a rank, called with (rank, index among the rank's actions, index among actions of its kind)."""

Note = Callable[[int, str, int, float, float, str, int], None]
"""Called with (rank, activity, lane, begin, end, label, bytes) of each event for a timeline."""


@dataclass(frozen=True)
class Prices:
    """Seconds of collectives: each bucket, one sum of all gradients, and each other collective."""

    buckets: Sequence[float]
    at_once: float
    meetings: Sequence[float]


@dataclass(frozen=True)
class Disturbance:
    """Differences between ranks: relative standard deviation of a step's computation, and factors of slow ranks.

    If `factors` of measured steps are given, one of them is drawn for each step of each rank.
    """

    noise: float = 0.0
    slow: Mapping[int, float] = field(default_factory=dict)
    factors: Sequence[float] = ()


@dataclass
class Result:
    """The end of each step, common to all ranks; each step's mean and longest computation; number of events."""

    ends: list[float]
    compute: list[float]
    longest: list[float]
    events: int = 0

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
    program: Program,
    ranks: int,
    steps: int,
    plan: Sequence[int] | None,
    prices: Prices,
    disturbance: Disturbance | None = None,
    seed: int = 1,
    note: Note | None = None,
) -> Result:
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
        # The actions of a rank, sorted by time: (offset, action, index).
        actions: list[tuple[float, _Action, int]] = [
            (one.at, self.begin_collective, number) for number, one in enumerate(program.meetings)
        ]
        if self.overlaps:
            actions += [(at, self.note_gradient, number) for number, at in enumerate(program.ready)]
        self.actions = sorted(actions, key=lambda action: action[0])
        self.actions.append((program.compute, self.end_compute, 0))
        self.bucket_of = [bisect.bisect_right(self.plan, number) - 1 for number in range(len(program.sizes))]
        self.bucket_ends = {past - 1 for past in self.plan[1:]}
        self.factor = [1.0] * ranks
        self.since = [0.0] * ranks  # start of the current interval of computation, for a timeline
        self.had = [[0.0] * ranks for _ in self.plan[1:]]
        self.lane_free = 0.0
        self.came = [[0.0] * ranks for _ in program.meetings]
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
        self.start = now
        self.arrived = [0] * len(self.prices.meetings)
        self.ready = [0] * (len(self.plan) - 1)
        self.next_bucket, self.is_busy, self.over = 0, False, 0
        self.done = [0.0] * self.ranks
        offset, first, number = self.actions[0]
        for rank in range(self.ranks):
            factor = self.factor[rank] = self.draw_factor(rank)
            self.since[rank] = now
            act(now + offset * factor, first, rank, 0, number)
        computed = [factor * self.program.compute for factor in self.factor]
        self.result.compute.append(sum(computed) / self.ranks)
        self.result.longest.append(max(computed))

    def draw_factor(self, rank: int) -> float:
        chosen = self.disturbance
        factor = self.random.choice(chosen.factors) if chosen.factors else 1.0
        if chosen.noise:
            factor *= max(_LEAST_FACTOR, self.random.gauss(1.0, chosen.noise))
        return factor * chosen.slow.get(rank, 1.0)

    def schedule_next(self, rank: int, place: int) -> None:
        """Schedule the rank's action after the one at index `place`."""
        offset, what, number = self.actions[place + 1]
        ahead = (offset - self.actions[place][0]) * self.factor[rank]
        self.events.schedule_act(self.events.now + ahead, what, rank, place + 1, number)

    def note_gradient(self, rank: int, place: int, number: int) -> None:
        if number in self.bucket_ends:
            bucket = self.bucket_of[number]
            self.had[bucket][rank] = self.events.now
            self.ready[bucket] += 1
            if self.ready[bucket] == self.ranks:
                self.take_bucket()
        self.schedule_next(rank, place)

    def take_bucket(self) -> None:
        """Start the next bucket, if it is ready on all ranks and the lane is free."""
        bucket = self.next_bucket
        if self.is_busy or bucket == len(self.ready) or self.ready[bucket] < self.ranks:
            return
        self.is_busy = True
        begin, end = self.events.now, self.events.now + self.prices.buckets[bucket]
        if self.note:
            first, past = self.plan[bucket : bucket + 2]
            label, size = self.program.names[past - 1], sum(self.program.sizes[first:past])
            for rank in range(self.ranks):
                ready = max(self.lane_free, self.had[bucket][rank])
                self.note(rank, "own gradients", 1, self.lane_free, ready, "", 0)
                self.note(rank, "meet", 1, ready, begin, "", 0)
                self.note(rank, "bucket", 1, begin, end, label, size)
                self.note(rank, "transfer", 1, begin, end, "", size)
        self.events.schedule_act(end, self.end_transfer)

    def end_transfer(self) -> None:
        self.is_busy, self.lane_free = False, self.events.now
        self.next_bucket += 1
        self.take_bucket()
        self.finish_step()

    def begin_collective(self, rank: int, place: int, number: int) -> None:
        """A rank reaches a collective on the computing thread."""
        self.compute_until_now(rank)
        self.came[number][rank] = self.events.now
        self.arrived[number] += 1
        if self.arrived[number] == self.ranks:
            end = self.events.now + self.prices.meetings[number]
            self.events.schedule_act(end, self.end_collective, place, number, self.events.now)

    def end_collective(self, place: int, number: int, begin: float) -> None:
        for rank in range(self.ranks):
            if self.note:
                one = self.program.meetings[number]
                self.note_collective(rank, one.kind, self.came[number][rank], begin, one.name, round(one.bytes))
            self.since[rank] = self.events.now
            self.schedule_next(rank, place)

    def end_compute(self, rank: int, place: int, number: int) -> None:
        self.compute_until_now(rank)
        self.done[rank] = self.events.now
        self.over += 1
        if self.over == self.ranks and not self.overlaps and self.program.sizes:
            self.events.schedule_act(self.events.now + self.prices.at_once, self.finish_step)
        else:
            self.finish_step()

    def finish_step(self) -> None:
        """End the step, if everything is computed and reduced."""
        if self.over < self.ranks or (self.overlaps and self.next_bucket < len(self.ready)):
            return
        now = self.events.now
        if self.note:
            begin = now - self.prices.at_once
            for rank in range(self.ranks):
                if self.overlaps:
                    self.note(rank, "gap", 0, self.done[rank], now, "", 0)
                    self.note(rank, "exposed", 0, self.done[rank], now, "", 0)
                    self.note(rank, "announcement", 0, now, now, "update", self.program.bytes)
                else:
                    self.note_collective(rank, "update", self.done[rank], begin, "update", self.program.bytes)
        self.result.ends.append(now)
        if len(self.result.ends) < self.steps:
            self.begin_step()

    def compute_until_now(self, rank: int) -> None:
        if self.note:
            self.note(rank, "gap", 0, self.since[rank], self.events.now, "", 0)

    def note_collective(self, rank: int, activity: str, came: float, begin: float, label: str, size: int) -> None:
        """Record a collective that the rank reached at `came`, that began at `begin` and ends now."""
        assert self.note is not None
        now = self.events.now
        self.note(rank, activity, 0, came, now, label, size)
        self.note(rank, "meet", 0, came, begin, "", 0)
        self.note(rank, "transfer", 0, begin, now, "", size)
