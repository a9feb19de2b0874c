"""How much memory this process may still take."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

_CGROUPS = "/sys/fs/cgroup"


def measure_free() -> int:
    """Bytes: the least of what the machine has, what the job's control groups and what the process's limits leave."""
    return max(0, min(_read_left()))


def _read_left() -> Iterator[int]:
    for line in _read_lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024
    yield from _read_left_to_control_groups()
    taken = int((_read_lines("/proc/self/statm") or ["0"])[0].split()[0]) * os.sysconf("SC_PAGE_SIZE")
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY:
            yield most - taken
    yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _read_left_to_control_groups() -> Iterator[int]:
    # Both versions; a group is bound by the limits of those above it, too.
    for line in _read_lines("/proc/self/cgroup"):
        _, controllers, path = line.strip().split(":", 2)
        if controllers == "":
            root, names = _CGROUPS, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = f"{_CGROUPS}/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        while True:
            most, taken = ("".join(_read_lines(f"{root}{path}/{name}")).strip() for name in names)
            if most.isdigit() and taken.isdigit():
                yield int(most) - int(taken)
            if path in ("", "/"):
                break
            path = os.path.dirname(path)


def _read_lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.readlines()
    except OSError:  # no such limit here
        return []
