"""Ranks that `matex plan` starts: to time links, and to compare predictions with measurements."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from pathlib import Path

import click

from matex_tf import settings
from matex_tf.ops import cache
from matex_tf.planner import plan_file
from matex_tf.planner.measurement import phantoms, started
from matex_tf.planner.plan_file import LinkMeasurement, Plan
from matex_tf.planner.predict import Prediction, Predictor
from matex_tf.planner.strategies import find_price
from matex_tf.world import mpirun_options, placement

CHECKED_STEPS = 60
"""By step 36, the ranks have chosen whether updates overlap."""
SECONDS = 120
"""Seconds for the ranks to time their sums."""
Launch = Callable[[int, Sequence[str], Sequence[str], Mapping[str, str] | None], list[str]]
"""Makes the command line that starts a number of ranks of a script, with options of mpirun, in an environment."""


def place_on_hosts(hosts: Sequence[str], per_host: int) -> list[str]:
    """The options of mpirun that start `per_host` ranks on each of `hosts`, in their order."""
    return ["--host", ",".join(f"{name}:{per_host}" for name in hosts)] if hosts else []


def measure_links(ranks_per_host: int, hosts: Sequence[str], launch: Launch) -> tuple[LinkMeasurement, ...]:
    """Measure links between the ranks of this host, and between one and all ranks of two `hosts`, if they can be
    started.
    """
    here = min(ranks_per_host, len(placement.list_cores()))
    asked = [(here, list[str]())] if here > 1 else []
    if len(hosts) > 1:
        asked += [(2 * count, place_on_hosts(hosts[:2], count)) for count in sorted({1, ranks_per_host})]
    return tuple(link for ranks, options in asked if (link := _measure_link(ranks, options, launch)))


def _measure_link(ranks: int, options: list[str], launch: Launch) -> LinkMeasurement | None:
    where = f" on {options[1]}" if options else ""
    print(f"matex: measuring sums of {ranks} ranks{where} ...", file=sys.stderr, flush=True)
    try:
        words = launch(ranks, ["-m", "matex_tf.planner.measurement.link"], options, None)
        _, said, complaint = run_ranks(words)
        link = plan_file.read_link(said)
    except subprocess.TimeoutExpired:
        why = f"they had not ended after {SECONDS} s"
    except plan_file.PlanFileError:
        why = complaint[-500:]
    except click.ClickException as error:  # there is no mpirun, or it belongs to another MPI
        why = error.format_message()
    except OSError as error:
        why = str(error)
    else:
        if not options or link.hosts > 1:
            return link
        why = "these names are one host's"
    stands_in = "" if options else "; 8 GB/s a rank are assumed"
    print(f"matex: nothing was measured between {ranks} ranks{where}{stands_in}: {why}", file=sys.stderr)
    return None


def run_ranks(words: Sequence[str]) -> tuple[int, str, str]:
    """Run ranks. Returns their exit code, standard output and standard error.

    Raises:
        subprocess.TimeoutExpired: they had not ended after `SECONDS`.
        OSError: they cannot be started.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with started.start_process(words, started.PATIENCE, **pipes) as process:
        said, complaint = process.communicate(timeout=SECONDS)
    return process.returncode, said, complaint


def check_predictions(
    made: Plan, ranks: Sequence[int], launch: Launch, hosts: Sequence[str] = (), answers: str = ""
) -> int:
    """Run the plan's script on each number of ranks, and print prediction and measurement. Returns 1 if a run fails.

    Args:
        hosts: none, or enough hosts for the largest of `ranks`.
        answers: a file for the results as JSON; "": none.

    Raises:
        PlanFileError: MATEX_STRATEGY is impossible for the script, or has no common updates.
    """
    predictor, strategy = Predictor(made), settings.get_settings().strategy
    if settings.is_statistical(strategy):
        raise plan_file.PlanFileError(
            f"--check times the updates of ranks together; MATEX_STRATEGY={strategy} has none"
        )
    predictions = [find_price(predictor, count, strategy if count > 1 else "allreduce").step for count in ranks]
    print(f"{'ranks':>6}{'predicted ms':>14}{'measured ms':>13}{'off':>9}")
    wrong, found = 0, []
    for one in predictions:
        needed = ceil(one.ranks / made.ranks_per_host)
        options = place_on_hosts(hosts[:needed], made.ranks_per_host)
        if unlike := describe_difference(made, one.ranks, options):
            print(f"matex: {unlike}", file=sys.stderr)
        try:
            took = time_real_run(made, one, options, launch)
        except phantoms.NotMeasured as error:
            print(f"matex: {error}", file=sys.stderr)
            wrong = 1
            found.append({"ranks": one.ranks, "why_not": str(error)})
            continue
        off = one.step / took - 1
        print(f"{one.ranks:6}{one.step * 1e3:14.1f}{took * 1e3:13.1f} {off:+8.1%}", flush=True)
        steps = {"predicted": one.step, "low": one.low, "high": one.high, "mark": one.mark, "measured": took}
        found.append({"ranks": one.ranks, **steps, "off": off, "unlike": unlike})
    if answers:
        Path(answers).write_text(json.dumps(found, indent=1) + "\n")
    return wrong


def describe_difference(made: Plan, ranks: int, options: Sequence[str]) -> str:
    """How the placement of started ranks differs from the predicted placement; "" if it does not."""
    hosts, cores = ceil(ranks / made.ranks_per_host), len(placement.list_cores())
    if ranks == 1 or mpirun_options.chooses_hosts(options, os.environ) or (hosts == 1 and ranks <= cores):
        return ""
    where = f"{hosts} hosts" if hosts > 1 else f"one host of {made.ranks_per_host} ranks"
    hint = f". --host A,B names {hosts} hosts" if hosts > 1 else ""
    return f"{ranks} ranks are predicted on {where} and measured on this one, of {cores} cores, which is no test{hint}"


def time_real_run(made: Plan, one: Prediction, options: Sequence[str], launch: Launch) -> float:
    """The typical step of the plan's script on that many ranks, in seconds."""
    limits = phantoms.make_limits(made.memory, made.microbatch)
    shared = cache.find_cache_folder() if options else None  # all hosts must see the mirror
    with started.make_place(shared) as folder:
        if one.ranks == 1:
            alone = phantoms.measure_copies(made.script, 1, 1, folder, scaling=made.scaling, limits=limits)
            return alone.size.typical

        def start_run(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
            return launch(one.ranks, words, options, environment)

        return phantoms.measure_real(
            start_run, made.script, folder, CHECKED_STEPS, made.scaling, limits, is_here=not options
        )
