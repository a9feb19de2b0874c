"""Applies MATEX_MICROBATCH: steps compute their rows in parts, which need less memory.

The library computes a step by a copy of the script's graph (`rewrite.emit.Copy`). When a copy is about to be built,
`_cut_copy` gives it a function that changes its program: ops are replaced by regions (`cutting`). A region is a loop
over parts of the rank's rows. Once the step is planned, `_report_plan` reports what still needs memory for all rows:
the first op on rows that is in no region, and rows that stay in memory for all parts.
"""

from __future__ import annotations

import functools
from typing import Any

from matex_tf import settings
from matex_tf.microbatches import sizes
from matex_tf.microbatches.cutting import LeftOut, Region, cut, list_kept
from matex_tf.microbatches.region import compute_parts
from matex_tf.rewrite.programs import Program
from matex_tf.runtime import notes
from matex_tf.steps import events, report

SESSION = "a session of tf.compat.v1 runs it"

_results: dict[int, tuple[list[LeftOut], list[Region]]] = {}
"""What `cut_program` has made of a copy, from `copy_begins` to `step_planned`, by the id of the copy's plan: the ops on
rows that the copy computes for all rows at once, and the regions.
"""


def start_parts() -> None:
    """Add the listeners, if the setting `microbatch` asks for parts."""
    if not settings.get_settings().microbatch:
        return
    events.copy_begins.add_listener(_cut_copy)
    events.step_planned.add_listener(_report_plan)
    events.computed_whole.add_listener(_report_whole)


def _cut_copy(plan: Any, copy: Any) -> None:
    """Let a new copy cut its program, unless a session runs the copy, or auto cannot measure the step.

    plan: the plan of the step or of the run of a session. `plan.trained` has the weights that it changes, if any.
    """
    if not copy.is_ordered:  # only sessions of tf.compat.v1 run copies whose ops with effects have no order
        if plan.trained:
            _report_whole("a training step", SESSION)
        return
    rows_of_part = settings.get_settings().microbatch  # a number, or AUTO
    left_out: list[LeftOut] = []
    regions: list[Region] = []
    _results[id(plan)] = left_out, regions
    obstacle = sizes.find_obstacle(plan.traced.variables) if rows_of_part == settings.AUTO else ""
    if obstacle:
        _report_whole(plan.place, obstacle)
        return
    sizes.return_freed()  # without this, memory that earlier parts have freed does not help later parts
    fittings: list[sizes.Fitting] = []  # of all regions of the step, so that one note reports that its rows do not fit

    def make_sizes() -> Any:
        is_auto = rows_of_part == settings.AUTO
        return sizes.Fitting(plan.place, fittings) if is_auto else rows_of_part

    copy.transform = functools.partial(cut_program, make_sizes, left_out, regions)


def cut_program(make_sizes: Any, left_out: list[LeftOut], regions: list[Region], program: Program) -> Program:
    """The program that is built in place of `program`: regions replace ops on rows.

    make_sizes: returns the `sizes` of `compute_parts` for one region.
    left_out, regions: receive the ops on rows outside of regions, and the regions.
    """

    def make_loop(region: Region) -> Any:
        regions.append(region)
        return functools.partial(compute_parts, region, make_sizes())

    return cut(program, make_loop, left_out)


def _report_plan(plan: Any) -> None:
    """Report the first op of a training step that does not run in parts, and rows that stay in memory for all parts."""
    left_out, regions = _results.pop(id(plan), ([], []))
    # `computed_whole` has reported a step that every rank computes by itself. Only training needs much memory.
    if plan.why_whole or not plan.trained:
        return
    if left_out:
        op = left_out[0].node.op
        _report_whole(plan.place, f"{op.type} ({report.find_line(op)}): {left_out[0].why}")
    kept_values = list_kept(regions)
    row_bytes = [report.count_bytes(value, axis) for value, axis in kept_values]  # None: not fixed
    if kept_values:
        amount = "rows" if None in row_bytes else f"{sum(filter(None, row_bytes))} bytes of each row"
        op = kept_values[0][0].tensor.op
        notes.print_note(
            f"MATEX_MICROBATCH: {plan.place} keeps {amount} in memory until figures of all rows are known, as "
            f"BatchNormalization needs them; first the result of {op.type} ({report.find_line(op)})"
        )


def _report_whole(step: str, why: str) -> None:
    notes.print_note(f"MATEX_MICROBATCH: {step} is not computed in parts, or not all of it: {why}")
