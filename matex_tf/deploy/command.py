"""`matex submit`, `matex follow` and `matex cancel`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from matex_tf.deploy import after_script, following, run_folder
from matex_tf.deploy.cluster import Cluster
from matex_tf.deploy.clusters import BATCH_CLUSTERS, CLUSTERS, KINDS
from matex_tf.deploy.job import Job, JobError
from matex_tf.deploy.kubectl import messages, mpijob
from matex_tf.deploy.kubernetes import KUBERNETES
from matex_tf.deploy.options import Options, add_options, merge_options

REFUSED, INTERRUPTED = 1, 130  # exit codes: the cluster refused, and Ctrl-C ended the command
_PBS_JOB_ID = re.compile(r"\d+(\[\d*\])?\.[\w.-]+", re.ASCII)  # the number of a job, followed by the name of its server
_STATE_COMMANDS = {"slurm": "scontrol", "pbs": "qstat", "lsf": "bjobs"}
"""For each scheduler with numeric job ids, a command that is installed where the scheduler is used (`find_job`)."""


def _add_cluster_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--slurm`, `--pbs` and so on to a command of click."""
    for name in reversed(CLUSTERS):
        help_text = f"Submit to {KINDS[name].__name__}{', as an MPIJob' if name == 'kubernetes' else ''}."
        command = click.option(f"--{name}", is_flag=True, help=help_text)(command)
    return command


@click.command(
    "submit",
    cls=after_script.SubmitCommand,
    context_settings={"allow_interspersed_args": False},
    short_help="Queue SCRIPT.py as a job of a cluster, and follow it.",
)
@_add_cluster_flags
@click.option("-n", "ranks", type=click.IntRange(min=1), metavar="RANKS", help="The total number of ranks.")
@add_options(*KINDS.values())
@click.option("--dry-run", is_flag=True, help="Print the job, and do not submit it.")
@click.option("--no-follow", is_flag=True, help="Do not wait for the job.")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT.py is the name of a module.")
@click.argument("script", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT.py [ARGUMENTS]")
def submit_script(
    ranks: int | None, dry_run: bool, no_follow: bool, is_module: bool, script: tuple[str, ...], **values: Any
) -> int:
    """Queue the unchanged SCRIPT.py as a job of a cluster, follow the job, and return its exit code.

    \b
    matex submit --slurm --nodes 4 --ranks-per-node 2 --time 2:00:00 train.py --epochs 90

    Job options may also follow SCRIPT.py, if none precedes it: matex submit --slurm train.py --nodes 4

    Ctrl-C leaves the job in the queue. Before its time limit, or if it is preempted, a job saves its state, is
    requeued, and resumes.

    Defaults are read from ./matex.toml and ~/.config/matex.toml, from the cluster's table. Lists are concatenated.

    \b
    [slurm]
    account = "science"
    setup = ["module load openmpi"]
    """
    clusters = [name for name in CLUSTERS if values.pop(name)]
    if not clusters:
        raise click.UsageError("no cluster is named. For example: matex submit --slurm --nodes 4 train.py")
    if len(clusters) > 1:
        named_flags = " and ".join(f"--{name}" for name in sorted(clusters))
        raise click.UsageError(f"{named_flags} do not go together: a job goes to one cluster")
    if not script:
        raise click.UsageError("no script is named. For example: matex submit --slurm --nodes 4 train.py")
    cluster = CLUSTERS[clusters[0]]
    target = ["-m", *script] if is_module else [*script]
    set_values = {name: value for name, value in values.items() if value not in (None, ())}
    _check_names(cluster.kind, set_values)
    try:
        options = merge_options(cluster.kind, set_values, ranks).complete(target)
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    if dry_run:
        text = cluster.preview_job(options, target)
        following.Output().write_bytes(text.encode(errors="surrogateescape"))  # arguments may be no UTF-8
        return 0
    if cluster.sees_files and not is_module and not os.path.isfile(script[0]):
        raise click.UsageError(f"there is no file {script[0]} in {os.getcwd()}")

    def submit_and_follow() -> int:
        job = cluster.submit_job(options, target)
        # Whether the folder of the run gets the records that `matex top` shows: a run of one rank has none, and in an
        # array each task has a folder of its own.
        is_recorded = options.ranks > 1 and not getattr(options, "array", "")
        following.print_line(f"{cluster.describe_job(job, options)} ({_suggest_commands(job, is_recorded)})")
        return 0 if no_follow else _follow_job(cluster, job)

    return _run_action("submit", submit_and_follow)


def _check_names(kind: type[Options], names: Iterable[str]) -> None:
    """Raises click.UsageError if an option belongs to another kind of cluster."""
    for name in set(names) - {field.name for field in fields(kind)}:
        cluster_flags = " or ".join(
            f"--{cluster}" for cluster, cluster_kind in KINDS.items() if hasattr(cluster_kind, name)
        )
        raise click.UsageError(f"--{name.replace('_', '-')} goes with {cluster_flags}")


NAMESPACE = click.option("--namespace", default="", metavar="NAMESPACE", help="Kubernetes: the namespace.")


@click.command("follow", short_help="Follow a job to its end.")
@NAMESPACE
@click.argument("job", metavar="JOB")
def follow_job(job: str, namespace: str) -> int:
    """Show JOB's output and each change of its state until it ends, and return its exit code.

    JOB is the scheduler's id of the job, or the folder of its run. Ctrl-C leaves the job.
    """
    cluster, found_job = find_job(job, namespace)
    return _run_action("follow", lambda: _follow_job(cluster, found_job), job)


@click.command("cancel", short_help="End a job, or remove it from the queue.")
@NAMESPACE
@click.argument("job", metavar="JOB")
def cancel_job(job: str, namespace: str) -> int:
    """End JOB, or remove it from the queue. JOB is not requeued.

    JOB is the scheduler's id of the job, or the folder of its run.
    """
    cluster, found_job = find_job(job, namespace)

    def end_job() -> int:
        cluster.cancel_job(found_job)
        following.print_line(f"{found_job.id} is cancelled")
        return 0

    return _run_action("cancel", end_job, job)


def find_job(job: str, namespace: str) -> tuple[Cluster[Any], Job]:
    """The cluster of a job, and the job. The first of these that fits tells what `job` is:

    1. The folder of a run: its note, `job.json`, names cluster and job.
    2. The id of a job with a folder below `runs`, except for Kubernetes.
    3. An id of PBS, a number and the name of a server.
    4. A number: a job of the first scheduler whose command is installed, else of Slurm.
    5. The name of an MPIJob, in `namespace`.

    Raises click.UsageError.
    """
    folder = Path(job)
    if job and folder.is_dir():
        try:
            kind, noted_job = run_folder.read_note(folder)
            return CLUSTERS[kind], CLUSTERS[kind].find_newest(noted_job)
        except (OSError, ValueError, KeyError, TypeError):
            raise click.UsageError(f"{job} is not the folder of a job that was submitted") from None
    kind = run_folder.find_cluster(job)
    if kind not in BATCH_CLUSTERS:  # "": no run has this job; a Kubernetes job also needs its namespace
        if _PBS_JOB_ID.fullmatch(job):
            kind = "pbs"
        elif job.isascii() and job.isdigit():
            installed_kinds = (kind for kind, command in _STATE_COMMANDS.items() if shutil.which(command))
            kind = next(installed_kinds, "slurm")
        elif mpijob.is_name(job):
            return KUBERNETES, Job(job, namespace=namespace)
        else:
            expected = "expected a job's number or name, or the folder of its run, as runs/train-1"
            raise click.UsageError(f"{expected}; given {job!r}")
    try:
        return BATCH_CLUSTERS[kind], BATCH_CLUSTERS[kind].find_job(job)
    except JobError as error:
        raise click.UsageError(str(error)) from None


def _suggest_commands(job: Job, is_recorded: bool = False) -> str:
    """The commands with which to go on: "follow: matex follow 4711; end: matex cancel 4711"."""
    job_arguments = shlex.join([*(["--namespace", job.namespace] if job.namespace else []), job.id])
    # The volume of a Kubernetes job may not be mounted on this machine.
    is_visible = is_recorded and bool(job.folder) and Path(job.folder).parent.is_dir()
    watch_text = f"watch: matex top {shlex.quote(job.folder)}; " if is_visible else ""
    return f"follow: matex follow {job_arguments}; {watch_text}end: matex cancel {job_arguments}"


def _follow_job(cluster: Cluster[Any], job: Job) -> int:
    try:
        return cluster.follow_job(job)
    except KeyboardInterrupt:
        following.print_line(f"{job.id} goes on ({_suggest_commands(job)})")
        return INTERRUPTED


def _run_action(command: str, action: Callable[[], int], job: str = "") -> int:
    """The exit code that `action` returns; REFUSED, after a message, if it raises an error."""
    try:
        return action()
    except (JobError, OSError) as error:
        print(f"matex {command}: {describe_failure(job, str(error))}", file=sys.stderr)
        return REFUSED


def describe_failure(job: str, message: str) -> str:
    """The text of a failure: the cluster's `message`, and that there is no folder `job`, if `job` may mean a folder.

    A text such as runs/train-1 never reaches the cluster (`find_job`).
    """
    # A word may mean a folder that does not exist. A number, or a name with the five random letters that `matex submit`
    # adds, means a job.
    may_mean_folder = mpijob.is_name(job) and not mpijob.is_made(job) and not os.path.isdir(job)
    if not may_mean_folder:
        return message
    if messages.is_without_cluster(message):
        return (
            f"there is no folder {job} in {os.getcwd()}, and no job of this name. A job of Slurm has a number, and its "
            "run a folder, as runs/train-1"
        )
    return f"there is no folder {job}, and as a job: {message}"
