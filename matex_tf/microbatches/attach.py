"""Applies MATEX_MICROBATCH to steps, and reports the steps, or ops of them, that do not run in parts.

`start_parts` listens to the building of copies of steps. `cutting` then replaces ops of the copy by regions, which
compute a part of the rows at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from matex_tf import settings
from matex_tf.microbatches import sizes
from matex_tf.microbatches.cutting import Left, Region, cut, list_kept
from matex_tf.microbatches.region import compute_parts
from matex_tf.rewrite.placement import Placement
from matex_tf.rewrite.programs import Program
from matex_tf.runtime import notes
from matex_tf.steps import events, report

SESSION = "a session of tf.compat.v1 runs it"
EAGER = "eager code is computed at once: decorate the training step with @tf.function"

_cut: dict[int, tuple[list[Left], list[Region]]] = {}
"""By the id of a new plan: the ops on rows that its copy computes for all rows at once, and regions."""


def start_parts() -> None:
    """Add the listeners, if the setting `microbatch` asks for parts."""
    if not settings.get_settings().microbatch:
        return
    events.copy_begins.add_listener(_cut_copy)
    events.step_planned.add_listener(_report_plan)
    events.computed_whole.add_listener(_report_whole)
    events.trained_eagerly.add_listener(functools.partial(_report_whole, "a training step in eager code", EAGER))


def _cut_copy(plan: Any, copy: Any) -> None:
    """Let a new copy cut its program, if a step of `tf.function` has it and auto can measure it."""
    if not copy.is_ordered:  # the copy of a session's run, which trains if `plan.trained` is not empty
        if plan.trained:
            _report_whole("a training step", SESSION)
        return
    rows = settings.get_settings().microbatch  # of a part; or AUTO
    left: list[Left] = []
    regions: list[Region] = []
    _cut[id(plan)] = left, regions
    sizes_of_step: list[sizes.Fitting] = []
    obstacle = sizes.find_obstacle(plan.traced.variables) if rows == settings.AUTO else ""
    if obstacle:
        _report_whole(plan.place, obstacle)
        return
    sizes.return_freed()

    def make_sizes() -> Any:
        return sizes.Fitting(plan.place, sizes_of_step) if rows == settings.AUTO else rows

    copy.transform = functools.partial(cut_program, make_sizes, left, regions)


def cut_program(
    make_sizes: Any, left: list[Left], regions: list[Region], program: Program, gives: Sequence[Placement]
) -> Program:
    """The program whose regions run in parts. Adds regions to `regions`, and ops on rows outside of them to `left`."""

    def make(region: Region) -> Any:
        regions.append(region)
        return functools.partial(compute_parts, region, make_sizes())

    return cut(program, gives, make, left)


def _report_plan(plan: Any) -> None:
    """Report the first op of a training step that does not run in parts, and rows that stay in memory for all parts."""
    left, regions = _cut.pop(id(plan), ([], []))
    if plan.why_whole or not plan.trained:  # reported by `_report_whole`, or no training step
        return
    if left:
        op = left[0].node.op
        _report_whole(plan.place, f"{op.type} ({report.find_line(op)}): {left[0].why}")
    kept = list_kept(regions)
    sizes_of_rows = [report.count_bytes(value, value.placement.axis) for value in kept]
    if kept:
        size = "rows" if None in sizes_of_rows else f"{sum(filter(None, sizes_of_rows))} bytes of each row"
        notes.print_note(
            f"MATEX_MICROBATCH: {plan.place} keeps {size} in memory until figures of all rows are known, as "
            f"BatchNormalization needs them; first the result of {kept[0].tensor.op.type} "
            f"({report.find_line(kept[0].tensor.op)})"
        )


def _report_whole(step: str, why: str) -> None:
    notes.print_note(f"MATEX_MICROBATCH: {step} is not computed in parts, or not all of it: {why}")
