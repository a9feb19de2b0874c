"""`matex plan`: predict the cost of a step on numbers of ranks that are not available.

`planning.command` calls `plan_script`. It measures sizes and links, makes a `Plan` of them, and prints predictions from
the plan. A size is the script's step on the slice of rank 0 of N ranks (`planning.sizes`). A link is the cost of sums
between ranks on one host or on two (`planning.ranks`).
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from matex_tf import settings
from matex_tf.launch.planning.checks import name_results
from matex_tf.launch.planning.kept_links import add_kept_links
from matex_tf.launch.planning.ranks import Launch, measure_links
from matex_tf.launch.planning.requests import PlanRequest
from matex_tf.launch.planning.sizes import Sizes, choose_memory
from matex_tf.planner import plan_file, report, strategies
from matex_tf.planner.choice import Choice, choose_ranks
from matex_tf.planner.compute import BUSY, count_measured_rows
from matex_tf.planner.measurement.phantoms import Measurement
from matex_tf.planner.plan_file import LinkMeasurement, Plan, Size
from matex_tf.planner.predict import Prediction, Predictor
from matex_tf.world import placement

DEFAULT_NETWORK = "ethernet25"


def plan_script(request: PlanRequest, script: Sequence[str], launch: Launch) -> int:
    """Measure `script`, print the predictions and the choice, and write the requested files. Returns the exit code."""
    plan = measure_plan(request, script, launch)
    print(report.format_heading(plan, Predictor(plan)))
    predictions, choice = _show_predictions(request, plan)
    results = report.make_json(plan, predictions, choice)
    results["strategies"] = _show_strategies(request, plan, choice)
    for rows in request.batches:
        try:
            rescaled_plan = rescale_batch(plan, rows)
        except plan_file.PlanFileError as error:
            print(f"matex: {error}", file=sys.stderr)
            continue
        print(f"\nwith batches of {rows} rows in place of {plan.rows}, which changes the training:")
        results.setdefault("batches", {})[rows] = report.make_json(
            rescaled_plan, *_show_predictions(request, rescaled_plan)
        )
    print(report.format_closing(plan, Predictor(plan), request.memory))
    if request.json:
        plan_file.save_plan(plan, request.json)
        results_path = name_results(Path(request.json))
        results_path.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{request.json}: what was measured; {results_path}: the table")
    if request.chart:
        Path(request.chart).write_text(report.draw_chart(predictions))
    return 0


def _print_table(table: Table) -> None:
    """Print a table as wide as the terminal; without a terminal, 160 columns wide."""
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _show_predictions(request: PlanRequest, plan: Plan) -> tuple[list[Prediction], Choice]:
    """Print and return the predictions for the requested ranks, and the choice among them."""
    predictor = Predictor(plan)
    predictions = [predictor.predict_step(ranks) for ranks in request.ranks]
    choice = choose_ranks(
        predictor, predictions, request.target, request.deadline, request.epochs * plan.epoch_steps, request.memory
    )
    _print_table(report.format_table(plan, predictions))
    print(choice.reason)
    return predictions, choice


def _show_strategies(request: PlanRequest, plan: Plan, choice: Choice) -> list[dict[str, Any]]:
    """Print the step of each strategy on the chosen number of ranks. Returns the figures for all requested numbers."""
    rank_counts = [ranks for ranks in request.ranks if ranks > 1]
    predictor = Predictor(plan)
    estimates_by_ranks = {
        ranks: strategies.estimate_strategies(predictor, ranks, request.strategy) for ranks in rank_counts
    }
    if rank_counts:
        shown_ranks = choice.best.ranks if choice.best else 1
        if shown_ranks == 1:  # strategies differ on several ranks only: show the first number that fits the memory
            fitting_ranks = (
                ranks
                for ranks in rank_counts
                if strategies.choose_strategy(estimates_by_ranks[ranks][0], request.memory)[0]
            )
            shown_ranks = next(fitting_ranks, rank_counts[0])
        prices, refusals = estimates_by_ranks[shown_ranks]
        print(f"\nstrategies on {shown_ranks} ranks (docs/strategies.md):")
        _print_table(report.format_strategies(prices))
        for refusal in refusals:
            print(f"not {refusal.strategy}: {refusal.why}")
        print(f"recommended: {strategies.choose_strategy(prices, request.memory)[1]}\n")
    return [report.make_strategies_json(*estimates, request.memory) for estimates in estimates_by_ranks.values()]


def rescale_batch(plan: Plan, rows: int) -> Plan:
    """The plan of the same script with batches of `rows`, from the measured sizes of slices.

    Raises:
        PlanFileError: the measured sizes do not determine it.
    """
    if count_measured_rows(plan) < 2:
        reason = "no step is sharded" if not plan.rows else "all slices that were measured have as many rows"
        raise plan_file.PlanFileError(f"--batch {rows}: {reason}, so that nothing is known of other batches")
    # `whole`, the step on the script's complete batch, was measured with other rows.
    return replace(plan, rows=rows, epoch_steps=ceil(plan.epoch_steps * plan.rows / rows), whole=None)


def measure_plan(request: PlanRequest, script: Sequence[str], launch: Launch) -> Plan:
    """Measure everything, and return it as a plan. Raises phantoms.NotMeasured if the script cannot be measured."""
    sizes = Sizes(script, request)
    sizes.measure_all()
    links = measure_links(request.ranks_per_host, request.hosts, launch)
    plan = make_plan(request, sizes, add_kept_links(links, request.hosts, bool(request.network)))
    # MATEX_STRATEGY=async is measured, too, if the script and a requested number of ranks allow it: several copies can
    # stand for the ranks of one host only.
    may_be_async = not plan.update.not_async and plan.scaling == "strong"
    fits_one_host = any(1 < ranks <= request.ranks_per_host for ranks in request.ranks)
    if may_be_async and request.copies > 1 and fits_one_host:
        plan = replace(plan, whole=sizes.measure_whole())
    return plan


def make_plan(request: PlanRequest, sizes: Sizes, links: tuple[LinkMeasurement, ...]) -> Plan:
    """Make the plan from the measurements. Raises phantoms.NotMeasured if too few sizes reduce the same tensors."""
    typical = sizes.leave_out_unlike()  # of the most ranks, among the sizes that sum the same tensors as most
    steps, ranks = typical.steps, typical.size.ranks
    measurements = [result for _, result in sorted(sizes.measurements.items())]  # by increasing ranks
    # What parts of an update ranks can shard is read from a size of several ranks.
    update = next((result for result in measurements if result.size.ranks > 1), typical).update
    counted_epoch_steps = next((result.epoch_steps for result in measurements if result.epoch_steps), 0)
    return Plan(
        script=tuple(sizes.script), host=socket.gethostname(), cores=len(placement.list_cores()),
        ranks_per_host=request.ranks_per_host, scaling=request.scaling, overlaps=typical.overlaps,
        rows=steps.rows if request.scaling == "strong" else steps.rows // ranks,  # of the script's batch
        epoch_steps=request.epoch_steps or counted_epoch_steps, gradients=steps.gradients,
        collectives=steps.collectives, sizes=tuple(_adapt_size(result, typical) for result in measurements),
        links=links, network=request.network or DEFAULT_NETWORK,
        assumptions=tuple(_list_assumptions(request, sizes, links)), update=update, memory=choose_memory(request),
        microbatch=settings.get_settings().microbatch, why_no_epoch=measurements[0].why_no_epoch,
    )  # fmt: skip


def _adapt_size(measurement: Measurement, typical: Measurement) -> Size:
    """The size for the plan. All sizes of a plan have one time for each gradient and collective of `typical`.

    The times say when in a step each gradient is `ready`, and `at` which time each other collective begins. Only size 1
    may reduce other tensors than `typical` (`Sizes.leave_out_unlike`). It gets made-up times, which have no effect,
    because one rank sums nothing.
    """
    size, steps = measurement.size, typical.steps
    if size.ranks > 1 or measurement is typical:
        return size
    ready_times, start_times = (size.typical,) * len(steps.gradients), (0.0,) * len(steps.collectives)
    return replace(
        size, ready=ready_times, at=start_times, bytes=size.bytes if measurement.steps.form == steps.form else ()
    )


def _list_assumptions(request: PlanRequest, sizes: Sizes, links: Sequence[LinkMeasurement]) -> list[str]:
    assumptions = ["no other work on the hosts or the network; files are read as fast as here"]
    if rows := settings.get_settings().microbatch:
        parts_text = "that fit memory" if rows == settings.AUTO else f"of {rows} rows"
        assumptions.append(f"slices are computed in parts {parts_text}, as they were here (MATEX_MICROBATCH)")
    assumptions += [f"rank 0 of {ranks} is extrapolated: {reason}" for ranks, reason in sorted(sizes.failures.items())]
    busy_share = max(measurement.size.busy for measurement in sizes.measurements.values())
    if busy_share > BUSY:
        assumptions.append(
            f"this machine is as busy as it was: other processes took {busy_share:.0%} of its cores. Ranges are wider, "
            "and what fewer ranks a host or larger batches would give is not said. Measure on an idle machine"
        )
    scopes = {link.scope for link in links}
    if max(request.ranks) > max((link.ranks for link in links if link.hosts > 1), default=request.ranks_per_host):
        assumptions.append(
            "sums over more ranks than were measured are made in a ring or in two levels. Ranks try MPI's own, too. "
            "Which algorithm it takes there is not known, and only the low end of a range counts on its best one"
        )
    if not scopes & {plan_file.TWO_HOSTS, plan_file.ALL_RANKS}:
        network = request.network or DEFAULT_NETWORK
        assumptions.append(f"{network} between hosts, which was not measured, and takes no core")
    assumptions += [f"sums between hosts take what a run measured before: {link.kept}" for link in links if link.kept]
    if plan_file.ONE_HOST not in scopes:
        assumptions.append("sums within a host at 8 GB/s a rank: no ranks could be started here to measure them")
    return assumptions
