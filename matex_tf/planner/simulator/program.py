"""What a rank does in a step, from what a plan has measured, at a number of ranks that was not."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import NamedTuple

from matex_tf import arguments
from matex_tf.planner import plan_file
from matex_tf.planner.compute import Compute, count_slice_rows


class NotAsked(ValueError):
    """What was asked for cannot be: the text says what can."""


class Meeting(NamedTuple):
    """A collective beside the sums of gradients: when it begins, its kind and name, and the bytes of a rank."""

    at: float
    kind: str
    name: str
    bytes: float


@dataclass(frozen=True)
class Program:
    """One rank's step alone, in seconds from its start and in bytes."""

    rows: int
    """Rows of the rank's slice; 0 where every rank computes the whole batch."""
    compute: float
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    ready: tuple[float, ...]
    """When each gradient and all before it are ready."""
    meetings: tuple[Meeting, ...] = ()
    """The other collectives."""

    @property
    def bytes(self) -> int:
        return sum(self.sizes)


def make_program(plan: plan_file.Plan, ranks: int) -> Program:
    """The step of a rank of `ranks`, as the planner has it."""
    ranks = arguments.check_whole_number("simulate", "ranks", ranks)
    model = Compute(plan)
    compute = model.estimate_seconds(ranks)
    at = itertools.accumulate((min(at, compute) for at in model.estimate_collective_times(ranks)), max)
    return Program(
        count_slice_rows(plan, ranks),
        compute,
        tuple(gradient.name for gradient in plan.gradients),
        tuple(gradient.bytes for gradient in plan.gradients),
        tuple(itertools.accumulate(model.estimate_ready_times(ranks), max)),
        tuple(
            Meeting(start, one.kind, one.name, size)
            for start, one, size in zip(at, plan.collectives, model.estimate_collective_bytes(ranks))
        ),
    )


def scale_program(program: Program, times: float) -> Program:
    """The same step, all of which is so many times as late."""
    return dataclasses.replace(
        program,
        compute=program.compute * times,
        ready=tuple(at * times for at in program.ready),
        meetings=tuple(one._replace(at=one.at * times) for one in program.meetings),
    )


def shorten_program(program: Program, compute: float) -> Program:
    """The same step with so many seconds of computation, in which nothing is later than its end."""
    return dataclasses.replace(
        program,
        compute=compute,
        ready=tuple(min(at, compute) for at in program.ready),
        meetings=tuple(one._replace(at=min(one.at, compute)) for one in program.meetings),
    )
