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
"""Steps of a run of --check. The last 20 are measured (`phantoms.SETTLED_STEPS`). Before them, usually by step 36,
the ranks have chosen whether updates overlap (`adapt.step_trials`).
"""
MEASURE_SECONDS = 120  # the time limit of the ranks that `run_ranks` starts
Launch = Callable[[int, Sequence[str], Sequence[str], Mapping[str, str] | None], list[str]]
"""Makes the command line that starts ranks, from their number, the script with its arguments, options of mpirun, and
the environment in which it will run (None: the one of this process).
"""


def place_on_hosts(hosts: Sequence[str], per_host: int) -> list[str]:
    """The options of mpirun that start `per_host` ranks on each of `hosts`, in their order; none without hosts."""
    return ["--host", ",".join(f"{name}:{per_host}" for name in hosts)] if hosts else []


def measure_links(ranks_per_host: int, hosts: Sequence[str], launch: Launch) -> tuple[LinkMeasurement, ...]:
    """Measure links: the time of sums over ranks. A link that cannot be measured is left out.

    The first link is between ranks of this host. If two `hosts` are given, two more are measured: between one rank on
    each of them, and between all ranks of both; only one if `ranks_per_host` is 1.
    """
    local_ranks = min(ranks_per_host, len(placement.list_cores()))
    launches = [(local_ranks, list[str]())] if local_ranks > 1 else []
    if len(hosts) > 1:
        launches += [(2 * count, place_on_hosts(hosts[:2], count)) for count in sorted({1, ranks_per_host})]
    return tuple(link for ranks, options in launches if (link := _measure_link(ranks, options, launch)))


def _measure_link(ranks: int, options: list[str], launch: Launch) -> LinkMeasurement | None:
    """Measure one link; None, after a message, if that fails. `options`: `place_on_hosts`, or [] for this host."""
    hosts_text = f" on {options[1]}" if options else ""
    print(f"matex: measuring sums of {ranks} ranks{hosts_text} ...", file=sys.stderr, flush=True)
    try:
        _, output, error_output = run_ranks(ranks, ["-m", "matex_tf.planner.measurement.link"], options, launch)
        link = plan_file.read_link(output)
    except subprocess.TimeoutExpired:
        reason = f"they had not ended after {MEASURE_SECONDS} s"
    except plan_file.PlanFileError:
        reason = error_output[-500:]
    except click.ClickException as error:  # there is no mpirun, or it belongs to another MPI
        reason = error.format_message()
    except OSError as error:
        reason = str(error)
    else:
        if not options or link.hosts > 1:
            return link
        reason = "these names are one host's"
    assumption = "" if options else "; 8 GB/s a rank are assumed"
    print(f"matex: nothing was measured between {ranks} ranks{hosts_text}{assumption}: {reason}", file=sys.stderr)
    return None


def run_ranks(ranks: int, target: Sequence[str], options: Sequence[str], launch: Launch) -> tuple[int, str, str]:
    """Run `target`, a script with its arguments, on `ranks` ranks. Returns exit code, standard output and error.

    Raises:
        subprocess.TimeoutExpired: they had not ended after `MEASURE_SECONDS`.
        OSError: they cannot be started.
    """
    environment = phantoms.inherit_environment()
    command = launch(ranks, target, options, environment)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with started.start_process(command, started.PATIENCE, env=environment, **pipes) as process:
        output, error_output = process.communicate(timeout=MEASURE_SECONDS)
    return process.returncode, output, error_output


def check_predictions(
    plan: Plan, rank_counts: Sequence[int], launch: Launch, hosts: Sequence[str] = (), results_file: str = ""
) -> int:
    """Run the plan's script on each number of ranks, and print prediction and measurement. Returns 1 if a run fails.

    Args:
        hosts: none, or enough hosts for the largest of `rank_counts`.
        results_file: the file to write the results to, as JSON; "" for no file.

    Raises:
        PlanFileError: MATEX_STRATEGY is impossible for the script, or its ranks do not sum gradients in each update.
    """
    predictor, strategy = Predictor(plan), settings.get_settings().strategy
    if settings.is_statistical(strategy):  # async or local:H: each rank updates from its own gradients
        raise plan_file.PlanFileError(
            f"--check times the updates of ranks together; MATEX_STRATEGY={strategy} has none"
        )
    # A price has the prediction of the step by a strategy, for `auto` the fastest one. One rank has no strategy.
    predictions = [find_price(predictor, count, strategy if count > 1 else "allreduce").step for count in rank_counts]
    print(f"{'ranks':>6}{'predicted ms':>14}{'measured ms':>13}{'off':>9}")
    exit_code, results = 0, []
    for prediction in predictions:
        hosts_needed = ceil(prediction.ranks / plan.ranks_per_host)
        options = place_on_hosts(hosts[:hosts_needed], plan.ranks_per_host)
        if difference := describe_difference(plan, prediction.ranks, options):
            print(f"matex: {difference}", file=sys.stderr)
        try:
            measured_seconds = time_real_run(plan, prediction, options, launch)
        except phantoms.NotMeasured as error:
            print(f"matex: {error}", file=sys.stderr)
            exit_code = 1
            results.append({"ranks": prediction.ranks, "why_not": str(error)})
            continue
        deviation = prediction.step / measured_seconds - 1
        print(
            f"{prediction.ranks:6}{prediction.step * 1e3:14.1f}{measured_seconds * 1e3:13.1f} {deviation:+8.1%}",
            flush=True,
        )
        seconds = {"predicted": prediction.step, "low": prediction.low, "high": prediction.high}
        outcome = {"mark": prediction.mark, "measured": measured_seconds, "off": deviation, "unlike": difference}
        results.append({"ranks": prediction.ranks, **seconds, **outcome})
    if results_file:
        Path(results_file).write_text(json.dumps(results, indent=1) + "\n")
    return exit_code


def describe_difference(plan: Plan, ranks: int, options: Sequence[str]) -> str:
    """A warning that `ranks` ranks are measured on this host, although they are predicted on several hosts or on more
    cores than it has; "" if they are not, or if `options` or a batch system choose the hosts.
    """
    hosts, cores = ceil(ranks / plan.ranks_per_host), len(placement.list_cores())  # predicted hosts, present cores
    fits_here = hosts == 1 and ranks <= cores
    if ranks == 1 or fits_here or mpirun_options.chooses_hosts(options, os.environ):
        return ""
    predicted_place = f"{hosts} hosts" if hosts > 1 else f"one host of {plan.ranks_per_host} ranks"
    hint = f". --host A,B names {hosts} hosts" if hosts > 1 else ""
    return (
        f"{ranks} ranks are predicted on {predicted_place} and measured on this one, of {cores} cores, which is no "
        f"test{hint}"
    )


def time_real_run(plan: Plan, prediction: Prediction, options: Sequence[str], launch: Launch) -> float:
    """The median seconds of a step of the plan's script on `prediction.ranks` ranks.

    Raises:
        phantoms.NotMeasured: the script fails, does not train, or ends too early.
    """
    limits = phantoms.make_limits(plan.memory, plan.microbatch)
    is_here = not mpirun_options.chooses_hosts(options, os.environ)
    shared_folder = None if is_here else cache.find_cache_folder()  # all hosts must see the folder of the run
    with started.make_place(shared_folder) as folder:
        if prediction.ranks == 1:
            # Without other ranks a phantom rank is a real one: rank 0 of 1, in 1 copy.
            measurement = phantoms.measure_copies(plan.script, 1, 1, folder, scaling=plan.scaling, limits=limits)
            return measurement.size.typical

        def start_run(target: Sequence[str], environment: Mapping[str, str]) -> list[str]:
            return launch(prediction.ranks, target, options, environment)

        return phantoms.measure_real(
            start_run, plan.script, folder, CHECKED_STEPS, plan.scaling, limits, is_here=is_here
        )
