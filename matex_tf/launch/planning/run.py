"""`matex plan`: what a step would cost on numbers of ranks that are not there."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from matex_tf import settings
from matex_tf.planner import plan_file, report
from matex_tf.planner.choice import choose
from matex_tf.planner.compute import Compute
from matex_tf.planner.measurement import phantoms
from matex_tf.planner.plan_file import LinkMeasurement, Plan
from matex_tf.planner.predict import Prediction, Predictor
from matex_tf.world import placement

LINEAR = 0.05
"""Farther off the line than this, one more size between is measured."""
CHECKED_STEPS = 25
Launch = Callable[[int, Sequence[str]], list[str]]
"""The command line that starts so many ranks of a script."""


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


def asked_by(given: dict[str, Any]) -> Asked:
    """The options of the command line.

    Raises:
        click.UsageError: they do not go together.
    """
    if given["deadline"] and not given["epoch_steps"]:
        raise click.UsageError("--deadline needs --epoch-steps: how many steps the script alone takes for an epoch")
    return Asked(
        given["ranks"], given["ranks_per_host"] or len(placement.cores()), given["network"],
        settings.current().scaling, given["target"], given["deadline"] or 0.0, given["epochs"],
        given["epoch_steps"] or 0, given["memory"], given["steps"], given["file"], given["chart"],
    )  # fmt: skip


def plan(asked: Asked, script: Sequence[str], launch: Launch) -> int:
    """Measure `script`, print the table and the choice, and write what was asked for. The exit code."""
    made = calibrate(asked, script, launch)
    predictor = Predictor(made)
    predictions = [predictor.step(ranks) for ranks in asked.ranks]
    choice = choose(predictor, predictions, asked.target, asked.deadline, asked.epochs * made.epoch_steps, asked.memory)
    print(report.heading(made, predictor))
    Console(width=None if sys.stdout.isatty() else 160).print(report.table(made, predictions))
    print(report.closing(made, choice, predictor, asked.memory))
    if asked.json:
        plan_file.save(made, asked.json)
        path = Path(asked.json)
        answers = path.with_name(f"{path.stem}.predictions{path.suffix}")
        answers.write_text(json.dumps(report.for_programs(made, predictions, choice), indent=1) + "\n")
        print(f"{path}: what was measured; {answers}: the table")
    if asked.chart:
        Path(asked.chart).write_text(report.chart(predictions))
    return 0


def sizes_of(ranks: Sequence[int], copies: int) -> list[int]:
    """The numbers of ranks that are measured: 1, to compare with; and of those that fill a host of `copies`, where each
    rank has as many cores, the ends and the middle by ratio.
    """
    full = sorted(one for one in {copies, *ranks} if one >= copies)
    middle = min(full, key=lambda one: abs(one * one - full[0] * full[-1]))
    return sorted({1, full[0], middle, full[-1]})


def calibrate(asked: Asked, script: Sequence[str], launch: Launch) -> Plan:
    """All that is measured, as a plan.

    Raises:
        phantoms.NotMeasured: the script cannot be measured.
    """
    copies = max(1, min(asked.ranks_per_host, len(placement.cores())))
    found: dict[int, phantoms.Measurement] = {}
    for ranks in sizes_of(asked.ranks, copies):
        _measure(found, script, ranks, copies, asked.steps)
    made = _plan_of(asked, script, found, launch)
    if between := _off_the_line(made):
        _measure(found, script, between, copies, asked.steps)
        made = _plan_of(asked, script, found, launch, made.links)
    return made


def _measure(
    found: dict[int, phantoms.Measurement], script: Sequence[str], ranks: int, copies: int, steps: int
) -> None:
    of = min(copies, ranks)
    print(f"matex: measuring rank 0 of {ranks}, {of} at once ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="matex-plan-") as folder:
        found[ranks] = phantoms.measure(script, ranks, of, Path(folder), steps)


def _off_the_line(made: Plan) -> int:
    """A number of ranks between the largest slices, if the middle size is off the line through the others; else 0."""
    full = [size for size in made.sizes if size.copies == made.sizes[-1].copies]
    if len(full) != 3 or not made.rows:
        return 0
    ends = Compute(replace(made, sizes=(full[0], full[2])))
    middle = full[1]
    expected, seen = ends.seconds(middle.ranks), sorted(middle.steps)[len(middle.steps) // 2]
    between = round((full[0].ranks * middle.ranks) ** 0.5)
    return between if full[0].ranks < between < middle.ranks and abs(expected - seen) > LINEAR * seen else 0


def _plan_of(
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
    end = sorted(alone.steps)[len(alone.steps) // 2]
    alike[1] = replace(alone, ready=(end,) * len(first.gradients), at=(0.0,) * len(first.collectives))
    assumptions = [
        f"{asked.network} between hosts, which was not measured",
        "no other work on the hosts or the network; files are read as fast as here",
    ]
    if rows := settings.current().microbatch:
        assumptions.append(f"slices are computed in parts of {rows} rows, as they were here (MATEX_MICROBATCH)")
    if dropped := sorted(set(found) - set(alike)):
        assumptions.append(f"rank 0 of {dropped} reduces otherwise than rank 0 of {most}, and was left out")
    if links is None:
        links = measure_links(asked.ranks_per_host, launch)
    if not links:
        assumptions.append("sums within a host at 8 GB/s a rank: no ranks could be started here to measure them")
    batch = found[most].steps.rows
    return Plan(
        tuple(script), socket.gethostname(), len(placement.cores()), asked.ranks_per_host, asked.scaling,
        found[most].overlaps, batch if asked.scaling == "strong" else batch // most, asked.epoch_steps,
        first.gradients, first.collectives, tuple(alike[ranks] for ranks in sorted(alike)), links, asked.network,
        tuple(assumptions),
    )  # fmt: skip


def measure_links(ranks_per_host: int, launch: Launch) -> tuple[LinkMeasurement, ...]:
    """Between as many ranks as this host has cores; none where they cannot be started."""
    ranks = min(ranks_per_host, len(placement.cores()))
    if ranks < 2:
        return ()
    with tempfile.TemporaryDirectory(prefix="matex-plan-") as folder:
        file = Path(folder, "link.json")
        print(f"matex: measuring sums of {ranks} ranks ...", file=sys.stderr, flush=True)
        words = launch(ranks, ["-m", "matex_tf.planner.measurement.link", str(file)])
        ended = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        if not file.exists():
            print(f"matex: no ranks could be started here: {ended.stderr[-500:]}", file=sys.stderr)
            return ()
        return (plan_file.load_link(file),)


def check(path: str, ranks: Sequence[int], launch: Launch) -> int:
    """Run the plan's script on these numbers of ranks; print prediction beside reality. 1 if a run fails."""
    made = plan_file.load(path)
    predictor = Predictor(made)
    print(f"{'ranks':>6}{'predicted ms':>14}{'measured ms':>13}{'off':>8}")
    wrong = 0
    for one in [predictor.step(count) for count in ranks]:
        try:
            took = run_really(made.script, one, launch)
        except phantoms.NotMeasured as error:
            print(f"matex: {error}", file=sys.stderr)
            wrong = 1
            continue
        print(f"{one.ranks:6}{one.step * 1e3:14.1f}{took * 1e3:13.1f}{one.step / took - 1:+8.1%}")
    return wrong


def run_really(script: Sequence[str], one: Prediction, launch: Launch) -> float:
    """The typical step of the script on that many ranks, seconds."""
    if one.ranks == 1:
        with tempfile.TemporaryDirectory(prefix="matex-plan-") as folder:
            steps = phantoms.measure(script, 1, 1, Path(folder), CHECKED_STEPS).size.steps
            return sorted(steps)[len(steps) // 2]
    with tempfile.TemporaryDirectory(prefix="matex-plan-") as folder:
        return phantoms.measure_real(lambda words: launch(one.ranks, words), script, Path(folder), CHECKED_STEPS)
