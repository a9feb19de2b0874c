"""The actions of a rank in a step, derived from a plan for any number of ranks: the input of a simulation."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import NamedTuple

from matex_tf import arguments
from matex_tf.planner import plan_file
from matex_tf.planner.compute import Compute, count_slice_rows


class ImpossibleRequest(ValueError):
    """A simulation is impossible as requested; the text says what is possible."""


class Meeting(NamedTuple):
    """A collective other than the sums of gradients: begin, kind, name, and bytes of a rank."""

    at: float
    kind: str
    name: str
    bytes: float


@dataclass(frozen=True)
class Program:
    """One rank's step without communication, in seconds from its start and in bytes."""

    rows: int
    """Rows of the rank's slice; 0 if every rank computes the whole batch."""
    compute: float
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    ready: tuple[float, ...]
    """For each gradient, the time at which it and all previous gradients are ready."""
    meetings: tuple[Meeting, ...] = ()
    """The other collectives."""

    @property
    def bytes(self) -> int:
        return sum(self.sizes)


def make_program(plan: plan_file.Plan, ranks: int) -> Program:
    """The step of one of `ranks` ranks, as the planner predicts it."""
    ranks = arguments.check_whole_number("simulate", "ranks", ranks)
    model = Compute(plan)
    compute = model.estimate_seconds(ranks)
    starts = itertools.accumulate((min(start, compute) for start in model.estimate_collective_times(ranks)), max)
    return Program(
        count_slice_rows(plan, ranks),
        compute,
        tuple(gradient.name for gradient in plan.gradients),
        tuple(gradient.bytes for gradient in plan.gradients),
        tuple(itertools.accumulate(model.estimate_ready_times(ranks), max)),
        tuple(
            Meeting(start, collective.kind, collective.name, size)
            for start, collective, size in zip(starts, plan.collectives, model.estimate_collective_bytes(ranks))
        ),
    )


def scale_program(program: Program, factor: float) -> Program:
    """The same step with all times multiplied by `factor`."""
    return dataclasses.replace(
        program,
        compute=program.compute * factor,
        ready=tuple(at * factor for at in program.ready),
        meetings=tuple(meeting._replace(at=meeting.at * factor) for meeting in program.meetings),
    )


def shorten_program(program: Program, compute: float) -> Program:
    """The same step with `compute` seconds of computation; later events move to its end."""
    return dataclasses.replace(
        program,
        compute=compute,
        ready=tuple(min(at, compute) for at in program.ready),
        meetings=tuple(meeting._replace(at=min(meeting.at, compute)) for meeting in program.meetings),
    )
