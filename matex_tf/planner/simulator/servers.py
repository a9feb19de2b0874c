"""Event simulation of workers and parameter servers, for the what-if `servers=` of `matex simulate`.

A batch of layers is consecutive layers whose parameters a worker pulls in one transfer. In each step a worker pulls the
parameters of the first batch of layers, and computes its forward pass while it pulls the next batch.
After the backward pass it pushes all gradients. Asynchronous workers then begin their next step; synchronous workers
first wait for all pushes. The loads of the servers are assumed to be equal. So all servers together are one station,
whose capacity the current transfers share evenly (`events.Station`).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from matex_tf.planner.events import Events, Station
from matex_tf.planner.simulator.ranks import Disturbance


@dataclass(frozen=True)
class Work:
    """The work of a worker in a step, in seconds if no other worker uses the servers."""

    pulls: Sequence[float]
    """For each batch of layers, the transfer of its parameters."""
    forward: Sequence[float]
    """For each batch of layers, its forward pass."""
    backward: float
    push: float
    """The transfer of all gradients."""
    start_up: float = 0.0
    """Before each transfer, without use of the servers."""

    @property
    def transfer(self) -> float:
        return sum(self.pulls) + self.push

    @property
    def compute(self) -> float:
        return sum(self.forward) + self.backward


@dataclass
class Run:
    """The simulated steps."""

    ends: list[list[float]]
    """For each worker, the ends of its steps in seconds."""

    def compute_step(self) -> float:
        """Seconds of a step, without each worker's first, which begins late: the harmonic mean, as rates add up."""
        step_seconds = [(ends[-1] - ends[0]) / (len(ends) - 1) for ends in self.ends]
        return len(step_seconds) / sum(1 / seconds for seconds in step_seconds)


@dataclass
class _Worker:
    number: int
    factor: float = 1.0  # of the computation in the current step
    pulled: int = 0  # number of batches of layers that it has pulled in the current step
    computed: int = 0  # number of batches of layers that it has computed in the current step
    computing: bool = False
    ends: list[float] = field(default_factory=list)  # the ends of its steps


class _Simulation:
    """The events of `simulate_servers`. A step of a worker is `begin_step`; `begin_pull` and `end_pull` for each batch
    of layers; meanwhile `compute_batch` and `end_compute` for each pulled batch; then the push, and `finish_step`.
    """

    def __init__(
        self, workers: int, capacity: float, work: Work, steps: int, synchronous: bool, disturbance: Disturbance,
        seed: int,
    ):  # fmt: skip
        self.events = Events()
        self.station = Station(self.events, capacity)
        self.work, self.steps, self.synchronous, self.disturbance = work, steps, synchronous, disturbance
        self.random = random.Random(seed)
        self.workers = [_Worker(number) for number in range(workers)]
        self.arrived = 0  # synchronous workers that wait for the others

    def run_steps(self) -> Run:
        for worker in self.workers:
            # Asynchronous workers start at random times, so that they do not all transfer at once.
            start = 0.0 if self.synchronous else self.random.random() * (self.work.compute + self.work.transfer)
            self.events.schedule(start, self.begin_step, worker)
        self.events.run_events()
        return Run([worker.ends for worker in self.workers])

    def begin_step(self, worker: _Worker) -> None:
        worker.factor = self.disturbance.draw_factor(worker.number, self.random)
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
        """Compute the next batch of layers, if it is pulled and the preceding batch is computed."""
        if worker.computing or worker.computed == worker.pulled:
            return
        worker.computing = True
        seconds = self.work.forward[worker.computed]
        is_last = worker.computed + 1 == len(self.work.forward)
        seconds += self.work.backward if is_last else 0.0
        self.events.schedule(self.events.now + seconds * worker.factor, self.end_compute, worker)

    def end_compute(self, worker: _Worker) -> None:
        worker.computing = False
        worker.computed += 1
        if worker.computed < len(self.work.forward):
            self.compute_batch(worker)
        else:
            self.start_transfer(self.work.push, lambda: self.finish_step(worker))

    def start_transfer(self, seconds: float, done: Callable[[], None]) -> None:
        """Call `done` after a transfer that takes `seconds` if no other worker uses the servers; 0: no transfer."""
        if seconds == 0:
            done()
        else:
            self.events.schedule(self.events.now + self.work.start_up, self.station.begin_job, seconds, done)

    def finish_step(self, worker: _Worker) -> None:
        """The worker has pushed its gradients. Begin the next step of all workers that need not wait."""
        worker.ends.append(self.events.now)
        next_workers = [worker]
        if self.synchronous:
            self.arrived += 1
            if self.arrived < len(self.workers):
                return
            self.arrived, next_workers = 0, self.workers
        for next_worker in next_workers:
            if len(next_worker.ends) < self.steps:
                self.begin_step(next_worker)


def simulate_servers(
    workers: int, capacity: float, work: Work, steps: int = 100, synchronous: bool = False,
    disturbance: Disturbance | None = None, seed: int = 1,
) -> Run:  # fmt: skip
    """Simulate `workers` workers for `steps` steps each, 2 or more.

    Args:
        capacity: the number of workers that the servers can serve at full speed: servers * BW_ps / BW_w, the bandwidth
            of a server over that of a worker.
        synchronous: each step begins when the pushes of all workers are complete.
        disturbance: the factors of the workers' computation, random or constant; None: 1.
    """
    return _Simulation(workers, capacity, work, steps, synchronous, disturbance or Disturbance(), seed).run_steps()


def sum_batches(seconds: Sequence[float], plan: Sequence[int]) -> list[float]:
    """For each batch of the boundaries `plan`, the sum of the seconds of its layers."""
    return [sum(seconds[first:stop]) for first, stop in itertools.pairwise(plan)]
