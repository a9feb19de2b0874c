"""What a rank does in a step, from what a plan has measured, at a number of ranks that was not."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from matex_tf import arguments
from matex_tf.planner import plan_file
from matex_tf.planner.compute import Compute, rows_of


class NotAsked(ValueError):
    """What was asked for cannot be: the text says what can."""


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
    meetings: tuple[tuple[float, str, int], ...] = ()
    """The other collectives: when each begins, its name and bytes."""

    @property
    def bytes(self) -> int:
        return sum(self.sizes)


def program_of_plan(plan: plan_file.Plan, ranks: int) -> Program:
    """The step of a rank of `ranks`, as the planner has it."""
    ranks = arguments.whole_number("simulate", "ranks", ranks)
    model = Compute(plan)
    compute = model.seconds(ranks)
    at = itertools.accumulate((min(at, compute) for at in model.at(ranks)), max)
    return Program(
        rows_of(plan, ranks),
        compute,
        tuple(gradient.name for gradient in plan.gradients),
        tuple(gradient.bytes for gradient in plan.gradients),
        tuple(itertools.accumulate(model.ready(ranks), max)),
        tuple((start, one.name, one.bytes) for start, one in zip(at, plan.collectives)),
    )
