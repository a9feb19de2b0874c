"""How much memory this process may still take."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

_CGROUPS = "/sys/fs/cgroup"
MARGIN = 1.15
"""Of memory: schedule and allocator alone move the peak of a process by so much."""


def measure_free(ranks: int = 1) -> int:
    """Bytes: the least of what the machine has and the job's control groups leave to each of so many ranks on this
    host, and of what the process's own limits do.
    """
    return max(0, min([*(left // ranks for left in _read_left_to_all()), *_read_left_to_process()]))


def _read_left_to_all() -> Iterator[int]:
    for line in _read_lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024
    yield from _read_left_to_control_groups()
    yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _read_left_to_process() -> Iterator[int]:
    taken = int((_read_lines("/proc/self/statm") or ["0"])[0].split()[0]) * os.sysconf("SC_PAGE_SIZE")
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY:
            yield most - taken


def _read_left_to_control_groups() -> Iterator[int]:
    # Both versions; a group is bound by the limits of those above it, too.
    for line in _read_lines("/proc/self/cgroup"):
        _, controllers, path = line.strip().split(":", 2)
        if controllers == "":
            root, names, cached = _CGROUPS, ("memory.max", "memory.current"), ("inactive_file", "active_file")
        elif "memory" in controllers.split(","):  # whose groups' own figures leave out those of the groups below
            root, names = f"{_CGROUPS}/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
            cached = ("total_inactive_file", "total_active_file")
        else:
            continue
        while True:
            most, taken = ("".join(_read_lines(f"{root}{path}/{name}")).strip() for name in names)
            if most.isdigit() and taken.isdigit():
                yield int(most) - int(taken) + _read_cached(f"{root}{path}/memory.stat", cached)
            if path in ("", "/"):
                break
            path = os.path.dirname(path)


def _read_cached(path: str, names: tuple[str, str]) -> int:
    """Bytes of files that are kept for whoever reads them again: they count as taken, and give way."""
    return sum(int(line.split()[1]) for line in _read_lines(path) if line.split()[0] in names)


def _read_lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.readlines()
    except OSError:  # no such limit here
        return []
