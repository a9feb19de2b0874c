"""The processes by which a launcher ends a rank: what they send is no wish of a person or of a batch system.

Kept before a rank loses the variables of its job, which its own children are not to see.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_JOB = "PMIX_NAMESPACE"  # other in each job of Open MPI, and told to all processes of one

_launchers: frozenset[int] = frozenset()


def note_launchers(environment: Mapping[str, str]) -> None:
    """Find the launcher of this rank, whose `environment` this is, where `matex run` has started that."""
    global _launchers
    if environment.get("MATEX_PROOF"):
        _launchers = find_launchers(os.getppid(), environment.get(_JOB, ""))


def get_launchers() -> frozenset[int]:
    """The daemon of mpirun above this rank, and what is between, such as a shell. None without `matex run`."""
    return _launchers


def find_launchers(process: int, job: str) -> frozenset[int]:
    """`process` and those above it, up to the first that is not of the `job`."""
    found: set[int] = set()
    while process > 1:
        found.add(process)
        if not job or f"{_JOB}={job}" not in _read_environment(process):
            break
        process = _read_parent(process)
    return frozenset(found)


def _read_environment(process: int) -> list[str]:
    try:
        return os.fsdecode(Path(f"/proc/{process}/environ").read_bytes()).split("\0")
    except OSError:  # it is another user's, or has ended
        return []


def _read_parent(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
