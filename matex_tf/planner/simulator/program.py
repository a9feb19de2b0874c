"""The program of a rank: when, within a step, its computation ends, gradients are ready, and collectives begin.

It is predicted from a plan file, which has the measurements of `matex plan` for some numbers of ranks.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import NamedTuple

from matex_tf.planner import plan_file
from matex_tf.planner.compute import Compute


class TimedCollective(NamedTuple):
    """A collective other than the sums of gradients."""

    at: float
    """Seconds from the start of the step to the start of the collective, without communication."""
    kind: str
    """One of the kinds of `plan_file.Collective`."""
    name: str
    bytes: float
    """Bytes of one rank."""


@dataclass(frozen=True)
class Program:
    """One rank's step without communication. Times are in seconds from its start."""

    compute: float
    """The end of the computation."""
    names: tuple[str, ...]
    """Names of the gradients."""
    sizes: tuple[int, ...]
    """Bytes of the gradients."""
    ready: tuple[float, ...]
    """For each gradient, the time from which it and all gradients before it in `names` are ready; at most `compute`."""
    collectives: tuple[TimedCollective, ...] = ()
    """The collectives other than the sums of gradients, in order of time."""

    @property
    def bytes(self) -> int:
        return sum(self.sizes)


def make_program(plan: plan_file.Plan, ranks: int) -> Program:
    """The step of one of `ranks` ranks, as the planner predicts it."""
    model = Compute(plan)
    # Each time is interpolated by itself, so it may be before the previous one: `accumulate` raises it to that.
    starts = itertools.accumulate(model.estimate_collective_times(ranks), max)
    collectives = zip(starts, plan.collectives, model.estimate_collective_bytes(ranks))
    return Program(
        compute=model.estimate_seconds(ranks), names=tuple(gradient.name for gradient in plan.gradients),
        sizes=tuple(gradient.bytes for gradient in plan.gradients),
        ready=tuple(itertools.accumulate(model.estimate_ready_times(ranks), max)),
        collectives=tuple(
            TimedCollective(start, collective.kind, collective.name, size) for start, collective, size in collectives
        ),
    )  # fmt: skip


def scale_program(program: Program, factor: float) -> Program:
    """The step if its computation takes `factor` times as long: transfers use its cores, or a strategy changes it."""
    return dataclasses.replace(
        program,
        compute=program.compute * factor,
        ready=tuple(time * factor for time in program.ready),
        collectives=tuple(collective._replace(at=collective.at * factor) for collective in program.collectives),
    )
