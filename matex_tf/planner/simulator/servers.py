"""Event simulation of workers and parameter servers: asynchronous or synchronous, pulls before or within the forward
pass. `simulator.run` uses it for the what-if `servers=`.

All servers together are one processor-sharing station: the load is even, or its fullest server determines the rate.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from matex_tf import arguments
from matex_tf.planner.events import Events, Station

_LEAST_FACTOR = 0.05


@dataclass(frozen=True)
class Work:
    """The work of a worker in a step, in seconds with all servers to itself.

    Before batch k of the layers is computed (`forward[k]`), its parameters are pulled (`pulls[k]`, each after
    `start_up`); pulls are sequential. Then come `backward` and the push of all gradients.
    """

    pulls: Sequence[float]
    forward: Sequence[float]
    backward: float
    push: float
    start_up: float = 0.0

    def __post_init__(self) -> None:
        if not self.pulls or len(self.pulls) != len(self.forward):
            raise ValueError("work: expected one pull or more, and a forward pass for each")

    @property
    def transfer(self) -> float:
        return sum(self.pulls) + self.push

    @property
    def compute(self) -> float:
        return sum(self.forward) + self.backward


def make_step_work(compute: float, transfer: float) -> Work:
    """`compute` seconds, then one transfer of `transfer` seconds: the work in XAI, HTC and the exact model."""
    return Work([0.0], [compute], 0.0, transfer)


@dataclass
class Run:
    """The end of each worker's steps in seconds, and the number of events."""

    ends: list[list[float]]
    events: int = 0

    def compute_step(self, skip: int = 1) -> float:
        """Mean seconds of a step after the first `skip` steps."""
        step_seconds = [(ends[-1] - ends[skip - 1]) / (len(ends) - skip) for ends in self.ends]
        return len(step_seconds) / sum(1 / seconds for seconds in step_seconds)

    def compute_throughput(self, skip: float = 0.1) -> float:
        """Steps a second of all workers, after the fraction `skip` of the time, until the first worker is done."""
        stop = min(ends[-1] for ends in self.ends)
        start = skip * stop
        return sum(start < end <= stop for ends in self.ends for end in ends) / (stop - start)


@dataclass
class _Worker:
    number: int
    steps: int = 0
    factor: float = 1.0  # of the computation of this step
    pulled: int = 0  # batches of layers
    computed: int = 0  # batches of layers
    computing: bool = False
    ends: list[float] = field(default_factory=list)  # of its steps


class _Simulation:
    """The events of `simulate_servers`."""

    def __init__(
        self, workers: int, capacity: float, work: Work, steps: int, synchronous: bool,
        noise: float, slow: dict[int, float], seed: int,
    ):  # fmt: skip
        self.events = Events()
        self.station = Station(self.events, capacity)
        self.work, self.steps, self.synchronous, self.noise, self.slow = work, steps, synchronous, noise, slow
        self.random = random.Random(seed)
        self.workers = [_Worker(number) for number in range(workers)]
        self.arrived = 0

    def run_steps(self) -> Run:
        for worker in self.workers:
            # Asynchronous workers start at random times.
            start = 0.0 if self.synchronous else self.random.random() * (self.work.compute + self.work.transfer)
            self.events.schedule_act(start, self.begin_step, worker)
        self.events.run_events()
        return Run([worker.ends for worker in self.workers], self.events.count)

    def begin_step(self, worker: _Worker) -> None:
        noise = self.random.gauss(1.0, self.noise) if self.noise else 1.0
        worker.factor = max(_LEAST_FACTOR, noise) * self.slow.get(worker.number, 1.0)
        worker.pulled = worker.computed = 0
        self.begin_pull(worker)

    def begin_pull(self, worker: _Worker) -> None:
        self.start_transfer(self.work.pulls[worker.pulled], lambda: self.end_pull(worker))

    def end_pull(self, worker: _Worker) -> None:
        worker.pulled += 1
        if worker.pulled < len(self.work.pulls):
            self.begin_pull(worker)
        self.compute_batch(worker)

    def compute_batch(self, worker: _Worker) -> None:
        """Compute the next batch of layers, if it is pulled and the preceding one is computed."""
        if worker.computing or worker.computed == worker.pulled:
            return
        worker.computing = True
        seconds = self.work.forward[worker.computed]
        is_last = worker.computed + 1 == len(self.work.forward)
        seconds += self.work.backward if is_last else 0.0
        self.events.schedule_act(self.events.now + seconds * worker.factor, self.end_compute, worker)

    def end_compute(self, worker: _Worker) -> None:
        worker.computing = False
        worker.computed += 1
        if worker.computed < len(self.work.forward):
            self.compute_batch(worker)
        else:
            self.start_transfer(self.work.push, lambda: self.finish_step(worker))

    def start_transfer(self, seconds: float, done: Callable[[], None]) -> None:
        if seconds == 0:
            done()
        elif self.work.start_up:
            self.events.schedule_act(self.events.now + self.work.start_up, self.station.serve_customer, seconds, done)
        else:
            self.station.serve_customer(seconds, done)

    def finish_step(self, worker: _Worker) -> None:
        worker.ends.append(self.events.now)
        worker.steps += 1
        if self.synchronous:
            self.arrived += 1
            if self.arrived < len(self.workers):
                return
            self.arrived = 0
            next_workers = [other for other in self.workers if other.steps < self.steps]
        else:
            next_workers = [worker] if worker.steps < self.steps else []
        for other in next_workers:
            self.begin_step(other)


def simulate_servers(
    workers: int,
    capacity: float,
    work: Work,
    steps: int = 100,
    synchronous: bool = False,
    noise: float = 0.0,
    slow: dict[int, float] | None = None,
    seed: int = 1,
) -> Run:
    """Simulate `workers` workers for `steps` steps each.

    Args:
        capacity: number of workers that the servers together serve at full speed: servers * BW_ps / BW_w.
        synchronous: each step begins when the pushes of all workers are complete.
        noise: relative standard deviation of a step's computation.
        slow: maps workers to factors of their computation.
    """
    workers = arguments.check_whole_number("simulate", "workers", workers)
    steps = arguments.check_whole_number("simulate", "steps", steps, least=2)
    return _Simulation(workers, capacity, work, steps, synchronous, noise, slow or {}, seed).run_steps()


def add_up_batches(seconds: Sequence[float], plan: Sequence[int]) -> list[float]:
    """The seconds of layers, added up over the batches of `plan` (its boundaries)."""
    return [sum(seconds[first:stop]) for first, stop in itertools.pairwise(plan)]
