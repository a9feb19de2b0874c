"""The variables by which a launcher tells a task its place, and what a rank that asks for one is told instead.

A rank's `os.environ` has none of them: a process that the rank starts would join the job, and the script would do other
things on each rank than alone. `os.environ.get(name, default)` gives the default, as alone, so a note says what to ask.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

# What each function of matex_tf gives in place of variables of launchers. A size is useless without a rank, so that
# the sizes of a job of Slurm's belong here, too.
_INSTEAD = {
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
FUNCTIONS = {name: function for function, names in _INSTEAD.items() for name in names}

taken: set[str] = set()
"""The variables that this process had from its launcher and has no more."""
when_asked: list[Callable[[str], None]] = []
"""Called with what to say when the script asks for one of them that has a function in its place."""
_process = 0  # whose they were: a forked child is no rank


def take_variables(chosen: Callable[[str], bool]) -> None:
    """Remove the `chosen` variables from this process's environment, and have each request for one of them noticed."""
    global _process
    _process = os.getpid()
    for name in list(os.environ):
        if chosen(name):
            taken.add(name)
            del os.environ[name]
    for environment in (os.environ, os.environb):
        environment.__class__ = _Noticing


class _Noticing(os._Environ[Any]):
    """An environment that says so when it is asked for a variable that was taken. A copy of it is a plain one."""

    def __getitem__(self, key: Any) -> Any:
        try:
            return super().__getitem__(key)
        except KeyError:
            if (name := os.fsdecode(key)) in taken and name in FUNCTIONS and os.getpid() == _process:
                for act in when_asked:
                    act(f"{explain_lack(name)}; a default in its place is the same on every rank")
            raise


def explain_lack(name: str) -> str:
    """Why a rank does not have the variable `name` of its launcher, and what to ask instead."""
    asks = FUNCTIONS.get(name)
    instead = f"matex_tf.{asks}()" if asks else ", ".join(f"matex_tf.{each}()" for each in _INSTEAD)
    return (
        f"{name} is not in os.environ of a rank, so that processes which the rank starts do not join the job. "
        f"Ask {instead} instead"
    )
