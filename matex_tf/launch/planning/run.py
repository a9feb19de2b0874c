"""`matex plan`: predict the cost of a step on numbers of ranks that are not available."""

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

from matex_tf import settings
from matex_tf.launch.planning.checks import name_answers
from matex_tf.launch.planning.kept_links import add_kept_links
from matex_tf.launch.planning.ranks import Launch, measure_links
from matex_tf.launch.planning.requests import Asked
from matex_tf.launch.planning.sizes import Sizes, choose_memory
from matex_tf.planner import plan_file, report, strategies
from matex_tf.planner.choice import Choice, choose_ranks
from matex_tf.planner.compute import BUSY, count_measured_rows
from matex_tf.planner.plan_file import LinkMeasurement, Plan
from matex_tf.planner.predict import Prediction, Predictor
from matex_tf.world import placement

DEFAULT_NETWORK = "ethernet25"


def plan_script(asked: Asked, script: Sequence[str], launch: Launch) -> int:
    """Measure `script`, print the predictions and the choice, and write the requested files. Returns the exit code."""
    made = measure_plan(asked, script, launch)
    print(report.format_heading(made, Predictor(made)))
    predictions, choice = _show_predictions(asked, made)
    answers = report.make_json(made, predictions, choice)
    answers["strategies"] = _show_strategies(asked, made, choice)
    for rows in asked.batches:
        try:
            other = rescale_batch(made, rows)
        except plan_file.PlanFileError as error:
            print(f"matex: {error}", file=sys.stderr)
            continue
        print(f"\nwith batches of {rows} rows in place of {made.rows}, which changes the training:")
        answers.setdefault("batches", {})[rows] = report.make_json(other, *_show_predictions(asked, other))
    print(report.format_closing(made, Predictor(made), asked.memory))
    if asked.json:
        plan_file.save_plan(made, asked.json)
        path = Path(asked.json)
        answers_path = name_answers(path)
        answers_path.write_text(json.dumps(answers, indent=1) + "\n")
        print(f"{path}: what was measured; {answers_path}: the table")
    if asked.chart:
        Path(asked.chart).write_text(report.draw_chart(predictions))
    return 0


def _show_predictions(asked: Asked, made: Plan) -> tuple[list[Prediction], Choice]:
    predictor = Predictor(made)
    predictions = [predictor.predict_step(ranks) for ranks in asked.ranks]
    choice = choose_ranks(
        predictor, predictions, asked.target, asked.deadline, asked.epochs * made.epoch_steps, asked.memory
    )
    Console(width=None if sys.stdout.isatty() else 160).print(report.format_table(made, predictions))
    print(choice.reason)
    return predictions, choice


def _show_strategies(asked: Asked, made: Plan, choice: Choice) -> list[dict[str, Any]]:
    """Print the strategies' steps on the chosen ranks, or on the fewest. Returns the figures for
    all numbers of ranks.
    """
    rank_counts = [ranks for ranks in asked.ranks if ranks > 1]
    predictor = Predictor(made)
    priced = {ranks: strategies.estimate_strategies(predictor, ranks, asked.strategy) for ranks in rank_counts}
    if rank_counts:
        shown_ranks = choice.best.ranks if choice.best else 1
        if shown_ranks == 1:
            fitting = (one for one in rank_counts if strategies.choose_strategy(priced[one][0], asked.memory)[0])
            shown_ranks = next(fitting, rank_counts[0])
        prices, refused = priced[shown_ranks]
        print(f"\nstrategies on {shown_ranks} ranks (docs/strategies.md):")
        Console(width=None if sys.stdout.isatty() else 160).print(report.format_strategies(prices))
        for one in refused:
            print(f"not {one.strategy}: {one.why}")
        print(f"recommended: {strategies.choose_strategy(prices, asked.memory)[1]}\n")
    return [report.make_strategies_json(*one, asked.memory) for one in priced.values()]


def rescale_batch(made: Plan, rows: int) -> Plan:
    """The plan of the same script with batches of `rows`, from the measured sizes of slices.

    Raises:
        PlanFileError: the measured sizes do not determine it.
    """
    if count_measured_rows(made) < 2:
        why = "no step is sharded" if not made.rows else "all slices that were measured have as many rows"
        raise plan_file.PlanFileError(f"--batch {rows}: {why}, so that nothing is known of other batches")
    return replace(made, rows=rows, epoch_steps=ceil(made.epoch_steps * made.rows / rows), whole=None)


def measure_plan(asked: Asked, script: Sequence[str], launch: Launch) -> Plan:
    """Measure everything, and return it as a plan.

    Raises:
        phantoms.NotMeasured: the script cannot be measured.
    """
    sizes = Sizes(script, asked)
    sizes.measure_all()
    links = measure_links(asked.ranks_per_host, asked.hosts, launch)
    made = make_plan(asked, sizes, add_kept_links(links, asked.hosts, bool(asked.network)))
    is_turned = made.update is not None and not made.update.not_async and made.scaling == "strong"
    if is_turned and asked.copies > 1 and any(1 < ranks <= asked.ranks_per_host for ranks in asked.ranks):
        made = replace(made, whole=sizes.measure_whole())
    return made


def make_plan(asked: Asked, sizes: Sizes, links: tuple[LinkMeasurement, ...]) -> Plan:
    """Make the plan from the measurements.

    Raises:
        phantoms.NotMeasured: too few sizes reduce the same tensors.
    """
    typical = sizes.leave_out_unlike()
    first, ranks = typical.steps, typical.size.ranks
    by_ranks = [one for _, one in sorted(sizes.found.items())]
    # For one rank, the time at which gradients are ready has no effect.
    alike = [
        one.size if one.size.ranks > 1 or one is typical else replace(
            one.size, ready=(one.size.typical,) * len(first.gradients), at=(0.0,) * len(first.collectives),
            bytes=one.size.bytes if one.steps.form == first.form else (),
        )
        for one in by_ranks
    ]  # fmt: skip
    update = next((one for one in by_ranks if one.size.ranks > 1), typical).update
    return Plan(
        tuple(sizes.script), socket.gethostname(), len(placement.list_cores()), asked.ranks_per_host, asked.scaling,
        typical.overlaps, first.rows if asked.scaling == "strong" else first.rows // ranks,
        asked.epoch_steps or next((one.epoch_steps for one in by_ranks if one.epoch_steps), 0),
        first.gradients, first.collectives, tuple(alike), links, asked.network or DEFAULT_NETWORK,
        tuple(_list_assumptions(asked, sizes, links)), update, None, choose_memory(asked),
        settings.get_settings().microbatch, by_ranks[0].why_no_epoch,
    )  # fmt: skip


def _list_assumptions(asked: Asked, sizes: Sizes, links: Sequence[LinkMeasurement]) -> list[str]:
    found = ["no other work on the hosts or the network; files are read as fast as here"]
    if rows := settings.get_settings().microbatch:
        parts = "that fit memory" if rows == settings.AUTO else f"of {rows} rows"
        found.append(f"slices are computed in parts {parts}, as they were here (MATEX_MICROBATCH)")
    found += [f"rank 0 of {ranks} is extrapolated: {why}" for ranks, why in sorted(sizes.missing.items())]
    busy = max(one.size.busy for one in sizes.found.values())
    if busy > BUSY:
        found.append(
            f"this machine is as busy as it was: other processes took {busy:.0%} of its cores. Ranges are wider, and "
            "what fewer ranks a host or larger batches would give is not said. Measure on an idle machine"
        )
    scopes = {link.scope for link in links}
    if max(asked.ranks) > max((link.ranks for link in links if link.hosts > 1), default=asked.ranks_per_host):
        found.append(
            "sums over more ranks than were measured are made in a ring or in two levels. Ranks try MPI's own, too. "
            "Which algorithm it takes there is not known, and only the low end of a range counts on its best one"
        )
    if not scopes & {plan_file.TWO_HOSTS, plan_file.ALL_RANKS}:
        network = asked.network or DEFAULT_NETWORK
        found.append(f"{network} between hosts, which was not measured, and takes no core")
    found += [f"sums between hosts take what a run measured before: {link.kept}" for link in links if link.kept]
    if plan_file.ONE_HOST not in scopes:
        found.append("sums within a host at 8 GB/s a rank: no ranks could be started here to measure them")
    return found
