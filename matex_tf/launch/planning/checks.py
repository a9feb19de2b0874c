"""Checks of `matex plan` before any measurement: arguments that are impossible or have no effect."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import click

from matex_tf.launch.planning.option_types import explain_unwritable
from matex_tf.launch.planning.ranks import Launch, place_on_hosts, run_ranks
from matex_tf.launch.planning.requests import Asked
from matex_tf.launch.planning.sizes import choose_memory, choose_sizes
from matex_tf.observe import measured_steps
from matex_tf.planner.plan_file import Plan

OF_CHECK = {"run_on": "-n"}
"""Options of --check only, keyed by parameter names."""
OF_BOTH = ("check", "hosts", "file", "script")
NOTHING = ("-m", "platform")
"""A module that exits at once; it tests whether ranks can be started on hosts."""


def check_options(given: dict[str, Any], told: dict[str, str], script: Sequence[str]) -> None:
    """Check the options of the command line, without other information.

    Args:
        given: the value of each parameter.
        told: the parameters on the command line, with the option names used there.

    Raises:
        click.UsageError: an option is impossible or has no effect.
    """
    if given["check"]:
        for name, option in told.items():
            if name not in (*OF_CHECK, *OF_BOTH):
                raise click.UsageError(f"--check does not take {option}: the plan determines the comparison")
    for name, option in OF_CHECK.items():
        if name in told and not given["check"]:
            raise click.UsageError(f"{option} goes with --check; --ranks LIST sets the numbers of ranks to predict")
    if given["deadline"] and not given["epochs"]:
        raise click.UsageError("--deadline needs the number of epochs, for example --epochs 90")
    if given["epochs"] and not given["deadline"]:
        raise click.UsageError("--epochs goes with --deadline TIME. Options of the script follow the script")
    if "target" in told and given["deadline"]:
        raise click.UsageError("--target and --deadline both choose the ranks: give one of them")
    _check_files(given, script)


def name_answers(path: Path) -> Path:
    """The file of the predictions, beside the file of the plan."""
    return path.with_name(f"{path.stem}.predictions{path.suffix}")


def _check_files(given: dict[str, Any], script: Sequence[str]) -> None:
    """Refuse an output file that is also an input file or another output file."""
    files = [("--json", given["file"]), ("--chart", given["chart"])]
    if given["file"] and not given["check"]:
        files.append(("--json, which writes the table beside the plan,", str(name_answers(Path(given["file"])))))
    others: dict[Path, str] = {Path(script[0]).resolve(): "an input file"}
    for option, name in files:
        if not name:
            continue
        path = Path(name).resolve()
        if why := explain_unwritable(path):  # the user did not name the file of predictions
            raise click.UsageError(f"{option} cannot write {name}: {why}")
        if path in others:
            raise click.UsageError(f"{option} would write {name}, {others[path]}: name another file")
        others[path] = "the output file of another option"


def check_request(asked: Asked) -> None:
    """Check the request as a whole.

    Raises:
        click.UsageError: the request is impossible.
    """
    if asked.batches and asked.scaling == "weak":
        raise click.UsageError(
            "--batch needs slices of several sizes, and with weak scaling all have as many rows as the script's batch"
        )
    if asked.batches and len(choose_sizes(asked.ranks, asked.copies)) < 2:
        raise click.UsageError("--batch needs slices of several sizes: name more --ranks than 1")
    check_names(asked.hosts, 2, "a link is between two")
    limit, least = choose_memory(asked), measured_steps.read_resident_bytes("VmRSS")
    if limit and limit < least:
        raise click.UsageError(
            f"{'--memory' if asked.memory else 'MATEX_MEMORY'} gives a rank {limit / 2**20:.3g} MiB, and Python takes "
            f"more than {least / 2**20:.0f} MiB before it imports TensorFlow"
        )


def check_names(hosts: Sequence[str], least: int, why: str) -> None:
    """Raises click.UsageError if there are fewer `hosts` than `least`, with the reason `why`, or if a host is named
    twice.
    """
    if hosts and len(hosts) < least:
        raise click.UsageError(f"--host names {len(hosts)} of at least {least} hosts: {why}")
    if twice := [name for name in hosts if hosts.count(name) > 1]:
        raise click.UsageError(f"--host names {twice[0]} twice")


def check_hosts(hosts: Sequence[str], launch: Launch) -> None:
    """Start a rank on each of `hosts` that exits at once.

    Raises:
        click.ClickException: the ranks cannot be started; the message quotes mpirun.
    """
    if not hosts:
        return
    where = f"--host {','.join(hosts)}: no rank can be started on each of these"
    try:
        code, _, complaint = run_ranks(launch(len(hosts), NOTHING, place_on_hosts(hosts, 1), None))
    except subprocess.TimeoutExpired as error:
        raise click.UsageError(f"{where}: they had not ended after {error.timeout:.0f} s") from None
    except OSError as error:
        raise click.UsageError(f"{where}: {error}") from None
    if code:
        raise click.UsageError(f"{where} (exit code {code}). mpirun says:\n{complaint.strip()[-1000:]}")


def check_runs(made: Plan, ranks: Collection[int], hosts: Sequence[str], launch: Launch) -> None:
    """Check that --check has an mpirun and enough hosts.

    Raises:
        click.ClickException: the ranks cannot be started.
    """
    most = max(ranks)
    needed = ceil(most / made.ranks_per_host)
    check_names(hosts, needed, f"{most} ranks, {made.ranks_per_host} on each, need so many")
    if most > 1 and not hosts:
        launch(most, NOTHING, (), None)  # raises if there is no mpirun
    check_hosts(hosts[:needed], launch)
