"""The launcher's processes on this host: mpirun or its daemon, which are ancestors of the rank, and what they show."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from matex_tf.world.task_environment import JOB

_MPIRUNS = ("mpirun", "mpiexec", "prterun", "orterun")
_DAEMONS = ("mpiexec.hydra", "prted", "orted", "hydra_pmi_proxy", "hydra_bstrap_pr", "slurmstepd")
_ANCESTORS = 8  # the number of ancestors of this process that are searched for the launcher
_noted: frozenset[int] = frozenset()  # see `get_launchers`


class LauncherProcess(NamedTuple):
    """The process that started the ranks of this host."""

    process: int
    name: str
    words: list[str]  # the command line


def find_launcher() -> LauncherProcess | None:
    """The launcher among this process's ancestors; None if there is none."""
    process = os.getppid()
    for _ in range(_ANCESTORS):
        if process <= 1:
            return None
        name = _read_file(process, "comm").strip()
        if name in (*_MPIRUNS, *_DAEMONS):
            return LauncherProcess(process, name, _read_file(process, "cmdline").split("\0"))
        process = _read_parent(process)
    return None


def note_launchers(environment: Mapping[str, str]) -> None:
    """Find the launcher of the rank with this `environment`. Called before the launcher's variables are removed.

    Only with `matex run`, which sends its requests as SIGUSR1, a SIGTERM from the launcher is an abort
    (`end_requests.hear_requests`). So without it there is nothing to find.
    """
    global _noted
    if not environment.get("MATEX_PROOF"):
        return
    process, job = os.getppid(), environment.get(JOB, "")
    processes: set[int] = set()
    while process > 1:
        processes.add(process)
        # A shell that mpirun has started has the job's name in its environment; mpirun or its daemon has not.
        if not job or read_environment(process).get(JOB) != job:
            break
        process = _read_parent(process)
    _noted = frozenset(processes)


def get_launchers() -> frozenset[int]:
    """The process ids of this rank's launcher on this host, and of a shell in between. Empty without `matex run`."""
    return _noted


def is_mpirun(process: int) -> bool:
    """Whether a process is the launcher itself, and not its daemon on another host."""
    return _read_file(process, "comm").strip() in _MPIRUNS


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


def read_environment(process: int) -> dict[str, str]:
    """The environment with which a process was started; empty if it has ended or belongs to another user."""
    entries = (entry.partition("=") for entry in _read_file(process, "environ").split("\0"))
    return {name: value for name, equals, value in entries if equals}


def _read_parent(process: int) -> int:
    """The process id of the parent of a process; 0 if it has ended."""
    fields = _read_file(process, "stat").rpartition(")")[2].split()
    return int(fields[1]) if fields else 0


def _read_file(process: int, name: str) -> str:
    """The text of a file of /proc; "" if the process has ended, or if the file is not for this user."""
    try:
        with open(f"/proc/{process}/{name}", errors="surrogateescape", newline="") as file:
            return file.read()
    except OSError:
        return ""
