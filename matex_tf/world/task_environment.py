"""What each launcher tells a task in environment variables; whether a launcher started this process as one of several.

Only variables of the task itself count. Those of an allocation, for example in a batch script, indicate no launcher.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Launcher:
    """A launcher, and the names of its variables for a task; "": it has no such variable."""

    name: str  # in messages
    rank: str
    size: str = ""  # the number of tasks
    local_rank: str = ""  # the rank among the tasks of the host
    local_size: str = ""
    prefixes: tuple[str, ...] = ()  # of the variables that a process outside the job must not have


SRUN = Launcher(
    "Slurm's srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
    prefixes=("SLURM_STEP", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
)  # fmt: skip
# Several may be set. The most specific comes first.
LAUNCHERS = (
    Launcher(
        "Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE", prefixes=("OMPI_", "PRTE_"),
    ),
    Launcher(
        "MVAPICH's launcher", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE", prefixes=("MV2_COMM_",),
    ),
    Launcher(
        "IBM's jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK",
        "JSM_NAMESPACE_LOCAL_SIZE", prefixes=("JSM_NAMESPACE_",),
    ),
    Launcher(
        "a PMI launcher (the mpiexec of MPICH or Intel MPI, or srun --mpi=pmi2)", "PMI_RANK", "PMI_SIZE",
        "MPI_LOCALRANKID", "MPI_LOCALNRANKS", prefixes=("PMI_", "HYDI_", "HYDRA_", "MPI_LOCAL"),
    ),
    Launcher("Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", prefixes=("FLUX_TASK_",)),
    Launcher(
        "PALS", "PALS_RANKID", "PALS_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", prefixes=("PALS_RANK",)
    ),
    SRUN,
    Launcher("a PMIx launcher", "PMIX_RANK", prefixes=("PMIX_",)),
)  # fmt: skip
PREFIXES = tuple(prefix for launcher in LAUNCHERS for prefix in launcher.prefixes)
JOB = "PMIX_NAMESPACE"
"""Its value is unique for each job of Open MPI; all processes of the job have it."""
# Slurm's numbers of special steps (batch script, interactive shell, extern) begin here. Their processes have a
# SLURM_PROCID, too, but are no tasks.
_SLURM_FIRST_SPECIAL_STEP = 4294967290
_USER_PREFIXES = ("OMPI_MCA_", "OMPI_ALLOW_", "PRTE_MCA_")  # of variables that a user sets, too
_SITE_VARIABLES = {"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_MPI_TYPE"}
"""Variables that a user or a cluster sets, not Slurm for a job."""


@dataclass(frozen=True)
class Task:
    """The launcher's description of this process; `size` is 0 if the number of tasks is unknown."""

    launcher: str
    size: int
    rank: int


def find_task(environment: Mapping[str, str]) -> Task | None:
    """The task described by the environment; None if no launcher started the process."""
    for launcher in LAUNCHERS:
        rank = _read_number(environment, launcher.rank)
        if rank is not None and (launcher is not SRUN or _is_in_slurm_step(environment)):
            return Task(launcher.name, _read_number(environment, launcher.size) or 0, rank)
    return None


def _is_in_slurm_step(environment: Mapping[str, str]) -> bool:
    numbers = (_read_number(environment, name) for name in ("SLURM_STEP_ID", "SLURM_STEPID"))  # new and old name
    step = next((number for number in numbers if number is not None), None)
    return step is not None and step < _SLURM_FIRST_SPECIAL_STEP


def _read_number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None


def make_job_name(environment: Mapping[str, str]) -> str:
    """A name for the run: the same for its ranks on one host, and unique among the runs of the host."""
    name = environment.get(JOB) or f"{os.getppid()}"  # the launcher is the parent of its ranks
    return re.sub(r"\W", "-", name)


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
        if not name.startswith(PREFIXES) or name.startswith(_USER_PREFIXES)
    }
    task = find_task(environment)
    if task and task.launcher == SRUN.name and "SLURM_JOB_CPUS_PER_NODE" in remaining:
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
