"""`matex plan`: what a step would cost on numbers of ranks that are not there."""

from __future__ import annotations

import json
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from matex_tf import memory, settings
from matex_tf.launch.planning.option_types import HERE
from matex_tf.launch.planning.ranks import Launch, measure_links
from matex_tf.planner import plan_file, report, strategies
from matex_tf.planner.choice import Choice, choose_ranks
from matex_tf.planner.compute import Compute
from matex_tf.planner.measurement import phantoms
from matex_tf.planner.plan_file import LinkMeasurement, Plan, Size
from matex_tf.planner.predict import Prediction, Predictor
from matex_tf.world import placement

LINEAR = 0.05
"""Farther off the line than this, one more size between is measured."""
BUSY = 0.1
"""Of this machine's cores: if others took more, it is said."""


@dataclass(frozen=True)
class Asked:
    """What `matex plan` was asked."""

    ranks: list[int]
    ranks_per_host: int
    network: str
    scaling: str
    target: float
    deadline: float
    epochs: int
    epoch_steps: int
    memory: float
    steps: int
    json: str
    chart: str
    hosts: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    strategy: str = ""
    """MATEX_STRATEGY, whose number is priced beside others."""


def read_options(given: dict[str, Any]) -> Asked:
    """The options of the command line.

    Raises:
        click.UsageError: they do not go together.
    """
    if given["deadline"] and not given["epoch_steps"]:
        raise click.UsageError("--deadline needs --epoch-steps: how many steps the script alone takes for an epoch")
    per_host = given["ranks_per_host"] or len(placement.list_cores())
    limit = memory.measure_free() / per_host if given["memory"] == HERE else given["memory"]
    return Asked(
        given["ranks"], per_host, given["network"],
        given["scaling"] or settings.get_settings().scaling, given["target"], given["deadline"] or 0.0, given["epochs"],
        given["epoch_steps"] or 0, limit, given["steps"], given["file"], given["chart"],
        split_hosts(given["hosts"]), tuple(given["batch"] or ()), settings.get_settings().strategy,
    )  # fmt: skip


def split_hosts(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def plan_script(asked: Asked, script: Sequence[str], launch: Launch) -> int:
    """Measure `script`, print the table and the choice, and write what was asked for. The exit code."""
    made = measure_plan(asked, script, launch)
    print(report.format_heading(made, Predictor(made)))
    predictions, choice = _show_predictions(asked, made)
    answers = report.make_json(made, predictions, choice)
    answers["strategies"] = _show_strategies(asked, made, choice)
    for rows in asked.batches:
        other = rescale_batch(made, rows)
        print(f"\nwith batches of {rows} rows in place of {made.rows}, which changes the training:")
        answers.setdefault("batches", {})[rows] = report.make_json(other, *_show_predictions(asked, other))
    print(report.format_closing(made, Predictor(made), asked.memory))
    if asked.json:
        plan_file.save_plan(made, asked.json)
        path = Path(asked.json)
        beside = path.with_name(f"{path.stem}.predictions{path.suffix}")
        beside.write_text(json.dumps(answers, indent=1) + "\n")
        print(f"{path}: what was measured; {beside}: the table")
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
    """Print what strategies make of a step on the chosen ranks, or on the fewest; those on any as numbers."""
    several = [ranks for ranks in asked.ranks if ranks > 1]
    predictor = Predictor(made)
    priced = {ranks: strategies.estimate_strategies(predictor, ranks, asked.strategy) for ranks in several}
    if several:
        shown = choice.best.ranks if choice.best else 1
        if shown == 1:
            held = (one for one in several if strategies.choose_strategy(priced[one][0], asked.memory)[0])
            shown = next(held, several[0])
        prices, refused = priced[shown]
        print(f"\nstrategies on {shown} ranks (docs/strategies.md):")
        Console(width=None if sys.stdout.isatty() else 160).print(report.format_strategies(prices))
        for one in refused:
            print(f"not {one.strategy}: {one.why}")
        print(f"recommended: {strategies.choose_strategy(prices, asked.memory)[1]}\n")
    return [report.make_strategies_json(*one, asked.memory) for one in priced.values()]


def rescale_batch(made: Plan, rows: int) -> Plan:
    """The plan of the same script with batches of `rows`: by the same measured sizes of slices."""
    if not made.rows:
        raise click.UsageError("--batch: no step is sharded, so that nothing is known of other batches")
    return replace(made, rows=rows, epoch_steps=ceil(made.epoch_steps * made.rows / rows), whole=None)


def choose_sizes(ranks: Sequence[int], copies: int) -> list[int]:
    """The numbers of ranks that are measured: 1, to compare with; and of those that fill a host of `copies`, where each
    rank has as many cores, the ends and the middle by ratio.
    """
    full = sorted(one for one in {copies, *ranks} if one >= copies)
    middle = min(full, key=lambda one: abs(one * one - full[0] * full[-1]))
    return sorted({1, full[0], middle, full[-1]})


def measure_plan(asked: Asked, script: Sequence[str], launch: Launch) -> Plan:
    """All that is measured, as a plan.

    Raises:
        phantoms.NotMeasured: the script cannot be measured.
    """
    copies = max(1, min(asked.ranks_per_host, len(placement.list_cores())))
    found: dict[int, phantoms.Measurement] = {}
    for ranks in choose_sizes(asked.ranks, copies):
        _measure_size(found, script, ranks, copies, asked)
    made = _make_plan(asked, script, found, launch)
    if between := _find_extra_size(made):
        _measure_size(found, script, between, copies, asked)
        made = _make_plan(asked, script, found, launch, made.links)
    is_turned = made.update is not None and not made.update.not_async and made.scaling == "strong"
    if is_turned and copies > 1 and any(1 < ranks <= asked.ranks_per_host for ranks in asked.ranks):
        made = replace(made, whole=_measure_whole(script, found[1].size, copies, asked))
    return made


def _measure_whole(script: Sequence[str], alone: Size, copies: int, asked: Asked) -> Size | None:
    """By MATEX_STRATEGY=async each rank trains whole batches beside the others. None if so many at once do not fit."""
    if copies * alone.peak_bytes * memory.MARGIN > memory.measure_free():
        return None
    try:
        return _measure_copies(script, 1, copies, asked).size
    except phantoms.NotMeasured as error:
        print(f"matex: async is estimated from rank 0 of 1: {error}", file=sys.stderr, flush=True)
        return None


def _measure_size(
    found: dict[int, phantoms.Measurement], script: Sequence[str], ranks: int, copies: int, asked: Asked
) -> None:
    found[ranks] = _measure_copies(script, ranks, min(copies, ranks), asked)


def _measure_copies(script: Sequence[str], ranks: int, copies: int, asked: Asked) -> phantoms.Measurement:
    print(f"matex: measuring rank 0 of {ranks}, {copies} at once ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="matex-plan-") as folder:
        limits = phantoms.make_limits(_choose_memory(asked), settings.get_settings().microbatch)
        return phantoms.measure_copies(script, ranks, copies, Path(folder), asked.steps, asked.scaling, limits)


def _choose_memory(asked: Asked) -> float:
    """What a process that is measured may take, bytes; 0: what its host leaves."""
    return asked.memory or settings.get_settings().memory


def _find_extra_size(made: Plan) -> int:
    """A number of ranks between the largest slices, if the middle size is off the line through the others; else 0."""
    full = [size for size in made.sizes if size.copies == made.sizes[-1].copies]
    if len(full) != 3 or not made.rows:
        return 0
    ends = Compute(replace(made, sizes=(full[0], full[2])))
    middle = full[1]
    expected, seen = ends.estimate_seconds(middle.ranks), middle.typical
    between = round((full[0].ranks * middle.ranks) ** 0.5)
    return between if full[0].ranks < between < middle.ranks and abs(expected - seen) > LINEAR * seen else 0


def _make_plan(
    asked: Asked, script: Sequence[str], found: dict[int, phantoms.Measurement], launch: Launch,
    links: tuple[LinkMeasurement, ...] | None = None,
) -> Plan:  # fmt: skip
    most = max(found)
    first = found[most].steps
    alike = {
        ranks: one.size
        for ranks, one in found.items()
        if one.steps.gradients == first.gradients and one.steps.collectives == first.collectives
    }
    # One rank alone meets nobody; when its gradients are ready matters to nothing.
    alone = found[1].size
    alike[1] = replace(alone, ready=(alone.typical,) * len(first.gradients), at=(0.0,) * len(first.collectives))
    assumptions = [
        "no other work on the hosts or the network; files are read as fast as here",
    ]
    if rows := settings.get_settings().microbatch:
        parts = "that fit memory" if rows == settings.AUTO else f"of {rows} rows"
        assumptions.append(f"slices are computed in parts {parts}, as they were here (MATEX_MICROBATCH)")
    if dropped := sorted(set(found) - set(alike)):
        assumptions.append(f"rank 0 of {dropped} reduces otherwise than rank 0 of {most}, and was left out")
    if links is None:
        links = measure_links(asked.ranks_per_host, asked.hosts, launch)
    busy = max(one.size.busy for one in found.values())
    if busy > BUSY:
        assumptions.append(
            f"this machine is as busy as it was: other processes took {busy:.0%} of its cores, and ranges are wider. "
            "Measure on an idle one"
        )
    scopes = {link.scope for link in links}
    if not scopes & {plan_file.TWO_HOSTS, plan_file.ALL_RANKS}:
        assumptions.append(f"{asked.network} between hosts, which was not measured, and takes no core")
    if plan_file.ONE_HOST not in scopes:
        assumptions.append("sums within a host at 8 GB/s a rank: no ranks could be started here to measure them")
    batch = found[most].steps.rows
    return Plan(
        tuple(script), socket.gethostname(), len(placement.list_cores()), asked.ranks_per_host, asked.scaling,
        found[most].overlaps, batch if asked.scaling == "strong" else batch // most, asked.epoch_steps,
        first.gradients, first.collectives, tuple(alike[ranks] for ranks in sorted(alike)), links, asked.network,
        tuple(assumptions), found[sorted(found)[min(1, len(found) - 1)]].update, None, _choose_memory(asked),
        settings.get_settings().microbatch,
    )  # fmt: skip
