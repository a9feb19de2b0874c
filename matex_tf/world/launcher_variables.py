"""Removes the launcher's variables for a task, such as OMPI_COMM_WORLD_RANK, from the environment of a rank.

Otherwise a child process of the rank would join the job, and a script that reads the variables would behave differently
on each rank. A read of a removed variable raises KeyError or returns the script's default, as without a launcher. A
note tells the user which function to call instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from matex_tf.world import task_environment

_NAMES = ("rank", "size", "local_rank", "local_size")
"""Functions of matex_tf that replace variables, and fields of `task_environment.Launcher`."""
FUNCTIONS = {
    # SLURM_NTASKS and SLURM_NPROCS describe the whole job, not a task. They are removed, too, because a size is useless
    # without a rank.
    "OMPI_COMM_WORLD_NODE_RANK": "local_rank", "SLURM_NTASKS": "size", "SLURM_NPROCS": "size",
    **{getattr(launcher, name): name for launcher in task_environment.LAUNCHERS for name in _NAMES},
}  # fmt: skip
"""The function that replaces each variable."""
del FUNCTIONS[""]  # of launchers without a variable

removed: set[str] = set()
"""The removed variables of this process."""
when_read: list[Callable[[str], None]] = []
"""Called with a note when the script reads a removed variable that has a function as alternative."""
_process = 0  # the process whose variables were removed; a forked child is no rank, so its reads are not reported


def keep_children_out() -> None:
    """Remove the launcher's variables from this process's environment: a child that joined the job would crash it.

    Also removed are the folders in which `matex run` expects the reports and the state of its ranks only. From now on
    the script's reads of removed variables are reported.
    """
    global _process
    _process = os.getpid()
    for name in list(os.environ):
        if name.startswith(task_environment.PREFIXES) or name in (*FUNCTIONS, "MATEX_PROOF", "MATEX_STATE"):
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
    functions = [FUNCTIONS[name]] if name in FUNCTIONS else _NAMES
    alternatives = ", ".join(f"matex_tf.{function}()" for function in functions)
    return (
        f"{name} is removed from a rank's os.environ, so that its child processes do not join the job. "
        f"Use {alternatives} instead"
    )
