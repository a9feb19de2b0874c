"""Removes the launcher's variables for a task, such as OMPI_COMM_WORLD_RANK, from the environment of a rank.

Otherwise a child process of the rank would join the job, and a script that reads the variables would behave differently
on each rank. A read of a removed variable raises KeyError or returns the script's default, as without a launcher. A
note tells the user which function to call instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable

# For each function of matex_tf, the variables that it replaces. SLURM_NTASKS and SLURM_NPROCS describe the whole job,
# not a task. They are removed, too, because a size is useless without a rank.
_REPLACEMENTS = {
    "rank": (
        "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "JSM_NAMESPACE_RANK", "PALS_RANKID",
        "FLUX_TASK_RANK", "SLURM_PROCID",
    ),
    "size": (
        "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE", "PALS_SIZE", "FLUX_JOB_SIZE",
        "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS",
    ),
    "local_rank": (
        "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_NODE_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK",
        "JSM_NAMESPACE_LOCAL_RANK", "PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID", "SLURM_LOCALID",
    ),
    "local_size": (
        "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE", "JSM_NAMESPACE_LOCAL_SIZE",
        "PALS_LOCAL_SIZE",
    ),
}  # fmt: skip
FUNCTIONS = {name: function for function, names in _REPLACEMENTS.items() for name in names}

removed: set[str] = set()
"""The removed variables of this process."""
when_read: list[Callable[[str], None]] = []
"""Called with a note when the script reads a removed variable that has a function as alternative."""
_process = 0  # the process whose variables were removed; a forked child is no rank, so its reads are not reported


def remove_variables(is_removed: Callable[[str], bool]) -> None:
    """Remove variables from this process's environment, and detect the script's reads of them.

    `is_removed`: whether to remove the variable of this name.
    """
    global _process
    _process = os.getpid()
    for name in list(os.environ):
        if is_removed(name):
            removed.add(name)
            del os.environ[name]
    variables = _ReportingVariables(vars(os.environ)["_data"])
    for environment in (os.environ, os.environb):
        vars(environment)["_data"] = variables


class _ReportingVariables(dict[bytes, bytes]):
    """The variables behind `os.environ`; reports reads of removed ones. A copy of `os.environ` is a plain dict."""

    def __missing__(self, key: bytes) -> bytes:
        if (name := os.fsdecode(key)) in removed and name in FUNCTIONS and os.getpid() == _process:
            for report in when_read:
                report(f"{explain_missing(name)}; a default in its place is the same on every rank")
        raise KeyError(key)


def explain_missing(name: str) -> str:
    """Why a rank lacks the launcher's variable `name`, and which function to call instead."""
    function = FUNCTIONS.get(name)
    alternatives = ", ".join(
        f"matex_tf.{function_name}()" for function_name in ([function] if function else _REPLACEMENTS)
    )
    return (
        f"{name} is removed from a rank's os.environ, so that its child processes do not join the job. "
        f"Use {alternatives} instead"
    )
