"""`matex submit`, `matex follow` and `matex cancel`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click

from matex_tf.deploy import after_script, following, kubernetes, run_folder, slurm
from matex_tf.deploy import job as jobs
from matex_tf.deploy.job import Job, JobError
from matex_tf.deploy.kinds import KINDS
from matex_tf.deploy.kubectl import messages, names
from matex_tf.deploy.options import Asked, Options, merge_options
from matex_tf.deploy.queues import flux, lsf, pbs

ASKED_WRONGLY, REFUSED, INTERRUPTED = 2, 1, 130
_HELP = {"help_option_names": ["-h", "--help"]}
CLUSTERS: dict[str, Any] = {
    "slurm": slurm,
    "pbs": pbs.Pbs(),
    "lsf": lsf.Lsf(),
    "flux": flux.FluxCore(),
    "kubernetes": kubernetes,
}
"""Who submits, follows and cancels jobs of each kind."""

_OF_PBS = re.compile(r"\d+(\[\d*\])?\.[\w.-]+", re.ASCII)  # the number of a job with the name of its server
_TELL = {"slurm": "scontrol", "pbs": "qstat", "lsf": "bjobs"}
"""The commands that tell of a job whose name is a number."""


def find_own_command() -> str:
    """The `matex` of this Python, where nodes see the same files."""
    beside = shutil.which("matex", path=str(Path(sys.executable).parent))
    return shlex.join([beside] if beside else [sys.executable, "-m", "matex_tf.launch.cli"])


def prepare_job(
    asked: type[Options], target: Sequence[str], given: dict[str, Any], ranks: int | None = None
) -> Options:
    """The options of a job that runs `target`, the script or `-m` and a module first, on so many `ranks` in all.

    Raises ValueError, TypeError.
    """
    return fill_name_and_command(merge_options(asked, given, ranks), target)


def fill_name_and_command(settled: Asked, target: Sequence[str]) -> Asked:
    """`settled`, where it names neither, with a name for a job of `target` and our command."""
    name = settled.name or (target[1] if target[0] == "-m" else Path(target[0]).stem)
    matex = settled.matex or ("" if isinstance(settled, kubernetes.Kubernetes) else find_own_command())
    return replace(settled, name="".join(each if each.isprintable() else "_" for each in name), matex=matex)


_OF_SLURM = (
    click.option("--nodes", type=int, metavar="NODES", help="How many nodes; 1 unless told."),
    click.option("--ranks-per-node", type=int, metavar="RANKS", help="How many ranks on each; 1 unless told."),
    click.option("--time", metavar="LIMIT", help="The time limit, as 2:00:00 or 1-12 (days-hours)."),
    click.option("--name", metavar="NAME", help="Of the job; that of the script unless told."),
    click.option("--restarts", type=int, metavar="TIMES", help="As of `matex run`; 3 unless told."),
    click.option(
        "--cpus", metavar="CPUS", help="How many each rank gets; whole nodes unless told. Of Kubernetes, each worker."
    ),
    click.option("--gpus-per-node", type=int, metavar="GPUS", help="How many GPUs on each node."),
    click.option("--setup", multiple=True, metavar="LINE", help="A line before the run: 'module load openmpi'."),
    click.option("--matex", metavar="COMMAND", help="The command `matex` where the job runs."),
    click.option("--account", metavar="ACCOUNT", help="Whose the job is: of Flux the bank, of LSF the project."),
    click.option("--partition", metavar="PARTITION", help="Of Slurm."),
    click.option("--qos", metavar="NAME", help="Of Slurm: the quality of service."),
    click.option("--constraint", metavar="FEATURES", help="Of Slurm: what the nodes are to have."),
    click.option("--gres", metavar="LIST", help="Of Slurm: devices of each node, as gpu:a100:4."),
    click.option("--dependency", metavar="JOBS", help="Of Slurm: after which jobs, as afterok:4711."),
    click.option("--exclusive", is_flag=True, default=None, help="Of Slurm: whole nodes, also with --cpus."),
    click.option("--launcher", metavar="COMMAND", help="Of Slurm: mpirun, or srun on a cluster without it."),
    click.option("--sbatch", multiple=True, metavar="OPTION", help="One more of sbatch: --sbatch=--mem=8G."),
)


def add_slurm_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a job of Slurm, for a command that has `--run` already."""
    for option in reversed(_OF_SLURM):
        command = option(command)
    return command


@click.command(
    "submit",
    cls=after_script.SubmitCommand,
    context_settings={**_HELP, "allow_interspersed_args": False},
    short_help="Queue SCRIPT.py as a job of a cluster, and follow it.",
)
@click.option("--slurm", "cluster", flag_value="slurm", help="As a job of Slurm.")
@click.option("--pbs", "cluster", flag_value="pbs", help="As a job of PBS.")
@click.option("--lsf", "cluster", flag_value="lsf", help="As a job of LSF.")
@click.option("--flux", "cluster", flag_value="flux", help="As a job of Flux.")
@click.option("--kubernetes", "cluster", flag_value="kubernetes", help="As an MPIJob of Kubernetes.")
@click.option("-n", "ranks", type=click.IntRange(min=1), metavar="RANKS", help="How many in all; as many a node.")
@click.option("--run", multiple=True, metavar="OPTIONS", help="Of `matex run`, or of its mpirun: '--mca pml ob1'.")
@add_slurm_options
@click.option(
    "--array", metavar="TASKS", help="Of Slurm: a run for each task, as 0-9%4; SLURM_ARRAY_TASK_ID tells which."
)
@click.option("--queue", metavar="QUEUE", help="Of PBS, LSF or Flux.")
@click.option("--option", multiple=True, metavar="LINE", help="One more of qsub, bsub or flux batch: '-l mem=8gb'.")
@click.option("--image", metavar="IMAGE", help="Of Kubernetes: with matex_tf, TensorFlow, MPI, bash and sshd.")
@click.option("--memory", metavar="BYTES", help="Of Kubernetes: of each worker, as 32Gi.")
@click.option("--namespace", metavar="NAMESPACE", help="Of Kubernetes.")
@click.option("--claim", metavar="NAME", help="Of Kubernetes: the volume that all pods see, where the state is kept.")
@click.option("--folder", metavar="PATH", help="Of Kubernetes: where pods see it; /runs unless told.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Of Kubernetes: a variable of the run.")
@click.option("--dry-run", is_flag=True, help="Print what would be submitted, and submit nothing.")
@click.option("--no-follow", is_flag=True, help="Do not wait for the job.")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT.py is the name of a module.")
@click.argument("script", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT.py [ARGUMENTS]")
def submit_script(
    cluster: str | None, ranks: int | None, dry_run: bool, no_follow: bool, is_module: bool, script: tuple[str, ...],
    **given: Any,
) -> int:  # fmt: skip
    """Queue SCRIPT.py, unchanged, as a job of a cluster. Follow it to its end, and end with its exit code.

    \b
    matex submit --slurm --nodes 4 --ranks-per-node 2 --time 2:00:00 train.py --epochs 90

    Options may also follow SCRIPT.py, if none of the job stands before it: matex submit --slurm train.py --nodes 4

    Ctrl-C leaves the job. Warned of its time limit, or preempted, it keeps its state, is queued again, and goes on.

    Defaults stand in ./matex.toml and ~/.config/matex.toml, in a table for each cluster. Lists add up.

    \b
    [slurm]
    account = "science"
    setup = ["module load openmpi"]
    """
    if cluster is None:
        raise click.UsageError("where? For example: matex submit --slurm --nodes 4 train.py")
    if not script:
        raise click.UsageError("no script is named. For example: matex submit --slurm --nodes 4 train.py")
    kind, does = KINDS[cluster], CLUSTERS[cluster]
    target = ["-m", *script] if is_module else [*script]
    chosen = {name: value for name, value in given.items() if value not in (None, ())}
    try:
        asked = prepare_job(kind, target, _check_names(kind, chosen), ranks)
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    if isinstance(asked, kubernetes.Kubernetes) and not asked.image:
        raise click.UsageError("--kubernetes needs --image, of an image with matex_tf, TensorFlow, MPI, bash and sshd")
    if dry_run:
        has_folder = does is not kubernetes
        name = str(run_folder.propose_folder(asked.name)) if has_folder else names.make_name(asked.name)
        following.open_stdout().write(does.format_job(asked, target, name).encode(errors="surrogateescape"))
        return 0
    if does is not kubernetes and not is_module and not os.path.isfile(script[0]):
        raise click.UsageError(f"there is no file {script[0]} in {os.getcwd()}")

    def submit_and_follow() -> int:
        job = does.submit_job(asked, target)
        is_recorded = asked.ranks > 1 and not getattr(asked, "array", "")  # an array has a record for each task
        following.print_line(f"{does.describe_job(job, asked)} ({_suggest_commands(job, is_recorded)})")
        return 0 if no_follow else _follow_job(does, job)

    return _run_action("submit", submit_and_follow)


def _check_names(kind: type[Options], given: dict[str, Any]) -> dict[str, Any]:
    """`given`. Raises click.UsageError for an option of another kind of cluster."""
    known = {one.name for one in fields(kind)}
    for name in given.keys() - known:
        goes = " or ".join(f"--{other}" for other, asked in KINDS.items() if hasattr(asked, name))
        raise click.UsageError(f"--{name.replace('_', '-')} goes with {goes}")
    return given


_NAMESPACE = click.option("--namespace", default="", metavar="NAMESPACE", help="Of Kubernetes.")


@click.command("follow", context_settings=_HELP, short_help="Follow a job to its end.")
@_NAMESPACE
@click.argument("job", metavar="JOB")
def follow_job(job: str, namespace: str) -> int:
    """Show each change of JOB's state, and what it prints, until it ends; end with its exit code.

    JOB is the scheduler's name of it, or the folder of its run. Ctrl-C leaves the job.
    """
    does, found = find_job(job, namespace)
    return _run_action("follow", lambda: _follow_job(does, found), job)


@click.command("cancel", context_settings=_HELP, short_help="End a job, or take it out of the queue.")
@_NAMESPACE
@click.argument("job", metavar="JOB")
def cancel_job(job: str, namespace: str) -> int:
    """End JOB, or take it out of the queue. It is not queued again.

    JOB is the scheduler's name of it, or the folder of its run.
    """
    does, found = find_job(job, namespace)

    def end_job() -> int:
        jobs.cancel_job(does, found)
        following.print_line(f"{found.id} is cancelled")
        return 0

    return _run_action("cancel", end_job, job)


def find_job(job: str, namespace: str) -> tuple[Any, Job]:
    """Which cluster's job it is, by its folder or by its name. Raises click.UsageError."""
    folder = Path(job)
    if job and folder.is_dir():
        try:
            cluster, found = run_folder.read_note(folder)
            does = CLUSTERS[cluster]
        except (OSError, ValueError, KeyError):
            raise click.UsageError(f"{job} is not the folder of a job that was submitted") from None
        return does, slurm.find_newest(found) if does is slurm else found
    if (noted := run_folder.find_cluster(job)) and noted != "kubernetes":  # whose job has a namespace, too
        return CLUSTERS[noted], CLUSTERS[noted].find_job(job)
    if _OF_PBS.fullmatch(job):
        return CLUSTERS["pbs"], CLUSTERS["pbs"].find_job(job)
    if job.isascii() and job.isdigit():
        does = CLUSTERS[next((name for name, tells in _TELL.items() if shutil.which(tells)), "slurm")]
        try:
            return does, does.find_job(job)
        except JobError as error:
            raise click.UsageError(str(error)) from None
    if names.is_name(job):
        return kubernetes, Job(job, namespace=namespace)
    raise click.UsageError(f"expected a job's number or name, or the folder of its run, as runs/train-1; given {job!r}")


def _suggest_commands(job: Job, is_recorded: bool = False) -> str:
    which = shlex.join([*(["--namespace", job.namespace] if job.namespace else []), job.id])
    # What lies on a volume of Kubernetes may not be seen here.
    is_seen = is_recorded and job.folder and Path(job.folder).parent.is_dir()
    watch = f"watch: matex top {shlex.quote(job.folder)}; " if is_seen else ""
    return f"follow: matex follow {which}; {watch}end: matex cancel {which}"


def _follow_job(does: Any, job: Job) -> int:
    try:
        return does.follow_job(job)
    except KeyboardInterrupt:
        following.print_line(f"{job.id} goes on ({_suggest_commands(job)})")
        return INTERRUPTED


def _run_action(command: str, action: Callable[[], int], job: str = "") -> int:
    try:
        return action()
    except (JobError, OSError) as error:
        print(f"matex {command}: {describe_failure(job, str(error))}", file=sys.stderr)
        return REFUSED


def describe_failure(job: str, said: str) -> str:
    """What a cluster `said` of a job; of a word that may have been meant as a folder, that there is none, too."""
    if not names.is_name(job) or names.is_made(job) or os.path.isdir(job):
        return said
    if messages.is_without_cluster(said):
        return (
            f"there is no folder {job} in {os.getcwd()}, and no job of this name. A job of Slurm has a number, and its "
            "run a folder, as runs/train-1"
        )
    return f"there is no folder {job}, and as a job: {said}"
