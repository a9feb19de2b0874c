"""Detects from the environment whether an MPI launcher started this process as one of several tasks.

Only variables of the task itself count. Those of an allocation, for example in a batch script, indicate no launcher.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from matex_tf.world import launcher_variables

# Slurm's numbers of special steps (batch script, interactive shell, extern) begin here. Their processes have a
# SLURM_PROCID, too, but are no tasks.
_SLURM_FIRST_SPECIAL_STEP = 4294967290

# (launcher, variable with the number of tasks, variable with the rank), the most specific first: several may be set.
KNOWN = (
    ("Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("MVAPICH's launcher", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("IBM's jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
    ("a PMI launcher (the mpiexec of MPICH or Intel MPI, or srun --mpi=pmi2)", "PMI_SIZE", "PMI_RANK"),
    ("Flux", "FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
    ("PALS", "PALS_SIZE", "PALS_RANKID"),
)
SRUN = "Slurm's srun"
_SITE_VARIABLES = {"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_MPI_TYPE"}
"""Variables that a user or a cluster sets, not Slurm for a job."""
_PREFIXES = (
    "OMPI_", "PMIX_", "PMI_", "PRTE_", "MV2_COMM_", "JSM_NAMESPACE_", "PALS_RANK", "FLUX_TASK_", "SLURM_STEP",
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "HYDI_", "HYDRA_", "MPI_LOCAL",
)  # fmt: skip
"""Prefixes of the launchers' variables for a task."""
_JOB = "PMIX_NAMESPACE"  # its value is unique for each job of Open MPI; all processes of the job have it
_launchers: frozenset[int] = frozenset()  # see `get_launchers`


@dataclass(frozen=True)
class Task:
    """The launcher's description of this process; `size` is 0 if the number of tasks is unknown."""

    launcher: str
    size: int
    rank: int


def find_task(environment: Mapping[str, str]) -> Task | None:
    """The task described by the environment; None if no launcher started the process."""

    def read_number(name: str) -> int | None:
        text = environment.get(name, "")
        return int(text) if text.isascii() and text.isdigit() else None

    for launcher, size_name, rank_name in KNOWN:
        rank = read_number(rank_name)
        if rank is not None:
            return Task(launcher, read_number(size_name) or 0, rank)
    slurm_step = read_number("SLURM_STEP_ID")
    if slurm_step is None:  # the older name
        slurm_step = read_number("SLURM_STEPID")
    is_in_step = slurm_step is not None and slurm_step < _SLURM_FIRST_SPECIAL_STEP
    if is_in_step and read_number("SLURM_PROCID") is not None:
        return Task(SRUN, read_number("SLURM_STEP_NUM_TASKS") or 0, read_number("SLURM_PROCID") or 0)
    if read_number("PMIX_RANK") is not None:
        return Task("a PMIx launcher", 0, read_number("PMIX_RANK") or 0)
    return None


def make_job_name(environment: Mapping[str, str]) -> str:
    """A name for the run: the same for its ranks on one host, and unique among the runs of the host."""
    name = environment.get(_JOB) or f"{os.getppid()}"  # the launcher is the parent of its ranks
    return re.sub(r"\W", "-", name)


def keep_children_out() -> None:
    """Remove the launcher's variables from this process's environment: a child that joined the job would crash it.

    Also removed are the folders in which `matex run` expects the reports and the state of its ranks only.
    """
    names = (*launcher_variables.FUNCTIONS, "MATEX_PROOF", "MATEX_STATE")
    launcher_variables.remove_variables(lambda name: name.startswith(_PREFIXES) or name in names)


def remove_task_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without the launcher's task variables, for another run. The user's MPI settings remain.

    In a Slurm step, the result describes the complete allocation again: another run may use all of its nodes and CPUs,
    without the binding of this step.
    """
    # A copy, because a rank's `os.environ` reports reads of removed variables (`launcher_variables`).
    environment = dict(environment)
    remaining = {
        name: value
        for name, value in environment.items()
        if not name.startswith(_PREFIXES) or name.startswith(("OMPI_MCA_", "OMPI_ALLOW_", "PRTE_MCA_"))
    }
    task = find_task(environment)
    if task and task.launcher == SRUN and "SLURM_JOB_CPUS_PER_NODE" in remaining:
        for name in ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_CPU_BIND"):
            remaining.pop(name, None)
        remaining["SLURM_NNODES"] = remaining["SLURM_JOB_NUM_NODES"]
        remaining["SLURM_TASKS_PER_NODE"] = remaining["SLURM_JOB_CPUS_PER_NODE"]
    return remaining


def remove_job_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without the variables of the launcher and of Slurm, for a child outside the job: one that probes a
    launcher, or submits another job.
    """
    without_task = remove_task_variables(environment)
    return {
        name: value for name, value in without_task.items() if not name.startswith("SLURM_") or name in _SITE_VARIABLES
    }


def note_launchers(environment: Mapping[str, str]) -> None:
    """Find the launcher of the rank with this `environment`. Called before `keep_children_out` removes its variables.

    Only with `matex run`, which sends its requests as SIGUSR1, a SIGTERM from the launcher is an abort
    (`shutdown.hear_requests`). So without it there is nothing to find.
    """
    global _launchers
    if not environment.get("MATEX_PROOF"):
        return
    process, job = os.getppid(), environment.get(_JOB, "")
    processes: set[int] = set()
    while process > 1:
        processes.add(process)
        # A shell that mpirun has started has the job's name in its environment; mpirun or its daemon has not.
        if not job or read_environment(process).get(_JOB) != job:
            break
        process = read_parent(process)
    _launchers = frozenset(processes)


def get_launchers() -> frozenset[int]:
    """The process ids of this rank's launcher on this host, and of a shell in between. Empty without `matex run`."""
    return _launchers


def read_environment(process: int) -> dict[str, str]:
    """The environment with which a process was started; empty if it has ended or belongs to another user."""
    try:
        text = os.fsdecode(Path(f"/proc/{process}/environ").read_bytes())
    except OSError:
        return {}
    return {name: value for name, equals, value in (entry.partition("=") for entry in text.split("\0")) if equals}


def is_mpirun(process: int) -> bool:
    """Whether a process is the launcher itself, and not its daemon on another host."""
    try:
        return Path(f"/proc/{process}/comm").read_text().strip() in ("prterun", "mpirun", "mpiexec", "orterun")
    except OSError:  # the process has ended
        return False


def is_mpirun_at_terminal(descriptor: int) -> bool | None:
    """Whether this descriptor of mpirun is a terminal. The rank's own descriptor may be a pipe or a pseudo-terminal.

    None if it is unknown: mpirun is not the parent of this process, or belongs to another user.
    """
    launcher = os.getppid()
    try:
        path = os.readlink(f"/proc/{launcher}/fd/{descriptor}")
    except OSError:
        return None
    return path.startswith(("/dev/pts/", "/dev/tty")) if is_mpirun(launcher) else None


def read_parent(process: int) -> int:
    """The process id of the parent of a process; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
