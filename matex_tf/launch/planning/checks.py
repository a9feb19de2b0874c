"""Checks of `matex plan` before any measurement: arguments that are impossible or have no effect."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import click

from matex_tf.launch.option_types import check_writable
from matex_tf.launch.planning.ranks import Launch, place_on_hosts, run_ranks
from matex_tf.launch.planning.requests import PlanRequest
from matex_tf.launch.planning.sizes import choose_memory, choose_sizes
from matex_tf.observe import measured_steps
from matex_tf.planner.plan_file import Plan

_ALLOWED_WITH_CHECK = ("check", "run_on", "hosts", "json", "script")
_IDLE_TARGET = ("-m", "platform")  # a module that exits at once, to test whether ranks can be started


def check_options(values: dict[str, Any], given_options: dict[str, str], script: Sequence[str]) -> None:
    """Check the options of the command line, without other information.

    Args:
        values: the value of each parameter.
        given_options: the option names on the command line, keyed by parameter names.
        script: the script with its arguments; with --check the file of the plan.

    Raises:
        click.UsageError: an option is impossible or has no effect.
    """
    if values["check"]:
        for name, option in given_options.items():
            if name not in _ALLOWED_WITH_CHECK:
                raise click.UsageError(f"--check does not take {option}: the plan determines the comparison")
    elif "run_on" in given_options:
        raise click.UsageError("-n goes with --check; --ranks LIST sets the numbers of ranks to predict")
    if values["deadline"] and not values["epochs"]:
        raise click.UsageError("--deadline needs the number of epochs, for example --epochs 90")
    if values["epochs"] and not values["deadline"]:
        raise click.UsageError("--epochs goes with --deadline TIME. Options of the script follow the script")
    if "target" in given_options and values["deadline"]:
        raise click.UsageError("--target and --deadline both choose the ranks: give one of them")
    _check_files(values, script)


def name_results(plan_path: Path) -> Path:
    """The file of the predictions, next to the plan: plan.predictions.json for plan.json."""
    return plan_path.parent / f"{plan_path.stem}.predictions{plan_path.suffix}"


def _check_files(values: dict[str, Any], script: Sequence[str]) -> None:
    """Raises click.UsageError for an unwritable output file, and for one that is also an input or another output."""
    files = [("--json", values["json"]), ("--chart", values["chart"])]
    if values["json"] and not values["check"]:
        files.append(("--json, which writes the table next to the plan,", str(name_results(Path(values["json"])))))
    used_files: dict[Path, str] = {Path(script[0]).resolve(): "an input file"}
    for option, name in files:
        if not name:
            continue
        check_writable(option, Path(name))
        path = Path(name).resolve()
        if path in used_files:
            raise click.UsageError(f"{option} would write {name}, {used_files[path]}: name another file")
        used_files[path] = "the output file of another option"


def check_request(request: PlanRequest) -> None:
    """Check the request as a whole. Raises click.UsageError if the request is impossible."""
    if request.batches and request.scaling == "weak":
        raise click.UsageError(
            "--batch needs slices of several sizes, and with weak scaling all have as many rows as the script's batch"
        )
    # Other batches are estimated by a line through the measured slices, which needs two sizes.
    if request.batches and len(choose_sizes(request.ranks, request.copies)) < 2:
        raise click.UsageError("--batch needs slices of several sizes: name more --ranks than 1")
    check_names(request.hosts, 2, "a link is between two")
    limit_bytes, min_bytes = choose_memory(request), measured_steps.read_resident_bytes("VmRSS")
    if limit_bytes and limit_bytes < min_bytes:
        raise click.UsageError(
            f"{'--memory' if request.memory else 'MATEX_MEMORY'} gives a rank {limit_bytes / 2**20:.3g} MiB, and "
            f"Python takes more than {min_bytes / 2**20:.0f} MiB before it imports TensorFlow"
        )


def check_names(hosts: Sequence[str], min_hosts: int, reason: str) -> None:
    """Raises click.UsageError if a host is named twice, or if there are fewer than `min_hosts`, with the `reason`."""
    if hosts and len(hosts) < min_hosts:
        raise click.UsageError(f"--host names {len(hosts)} of at least {min_hosts} hosts: {reason}")
    if duplicates := [name for name in hosts if hosts.count(name) > 1]:
        raise click.UsageError(f"--host names {duplicates[0]} twice")


def check_hosts(hosts: Sequence[str], launch: Launch) -> None:
    """Start a rank on each of `hosts` that exits at once. Raises click.ClickException, which quotes mpirun."""
    if not hosts:
        return
    failure = f"--host {','.join(hosts)}: no rank can be started on each of these"
    try:
        code, _, error_output = run_ranks(len(hosts), _IDLE_TARGET, place_on_hosts(hosts, 1), launch)
    except subprocess.TimeoutExpired as error:
        raise click.UsageError(f"{failure}: they had not ended after {error.timeout:.0f} s") from None
    except OSError as error:
        raise click.UsageError(f"{failure}: {error}") from None
    if code:
        raise click.UsageError(f"{failure} (exit code {code}). mpirun says:\n{error_output.strip()[-1000:]}")


def check_runs(plan: Plan, ranks: Collection[int], hosts: Sequence[str], launch: Launch) -> None:
    """Check that --check has an mpirun and enough hosts. Raises click.ClickException if the ranks cannot be started."""
    max_ranks = max(ranks)
    hosts_needed = ceil(max_ranks / plan.ranks_per_host)
    check_names(hosts, hosts_needed, f"{max_ranks} ranks, {plan.ranks_per_host} on each, need so many")
    if max_ranks > 1 and not hosts:
        launch(max_ranks, _IDLE_TARGET, (), None)  # raises if there is no mpirun
    check_hosts(hosts[:hosts_needed], launch)
