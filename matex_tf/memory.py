"""Measures the memory that this process may still use."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

_CGROUPS = "/sys/fs/cgroup"
MARGIN = 1.15
"""The least ratio of available memory to an estimated peak: the real peak varies with schedule and allocator."""


def measure_free(ranks: int = 1) -> int:
    """The bytes that this process may still use.

    The minimum of the free memory of the host and of its control groups, divided among `ranks` ranks, and of the
    process's own limits.
    """
    return max(0, min([*(free // ranks for free in _read_free_of_host()), *_read_free_of_process()]))


def _read_free_of_host() -> Iterator[int]:
    """The bytes that remain under each limit that this process shares with others of the host."""
    for line in _read_lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024
    yield from _read_free_of_control_groups()
    yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # the only limit if no file could be read


def _read_free_of_process() -> Iterator[int]:
    """The bytes that remain under each limit of this process (ulimit)."""
    # In pages, the first number of statm is the address space, and the sixth the data without mapped files.
    page_counts = [int(number) for number in (_read_lines("/proc/self/statm") or ["0 0 0 0 0 0"])[0].split()]
    for limit_kind, used_pages in ((resource.RLIMIT_AS, page_counts[0]), (resource.RLIMIT_DATA, page_counts[5])):
        limit = resource.getrlimit(limit_kind)[0]
        if limit != resource.RLIM_INFINITY:
            yield limit - used_pages * os.sysconf("SC_PAGE_SIZE")


def _read_free_of_control_groups() -> Iterator[int]:
    """The free bytes of each control group of this process, and of the groups above it, whose limits also apply."""
    for line in _read_lines("/proc/self/cgroup"):
        _, controllers, path = line.strip().split(":", 2)
        if controllers == "":  # version 2
            root, names, cached_names = _CGROUPS, ("memory.max", "memory.current"), ("inactive_file", "active_file")
        elif "memory" in controllers.split(","):  # version 1, in which only the totals include child groups
            root, names = f"{_CGROUPS}/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
            cached_names = ("total_inactive_file", "total_active_file")
        else:
            continue
        while True:
            limit_text, used_text = ("".join(_read_lines(f"{root}{path}/{name}")).strip() for name in names)
            if limit_text.isdigit() and used_text.isdigit():
                yield int(limit_text) - int(used_text) + _read_cached(f"{root}{path}/memory.stat", cached_names)
            if path in ("", "/"):
                break
            path = os.path.dirname(path)


def _read_cached(path: str, names: tuple[str, str]) -> int:
    """Bytes of cached files: they count as used, but the kernel frees them when memory is needed."""
    return sum(int(line.split()[1]) for line in _read_lines(path) if line.split()[0] in names)


def _read_lines(path: str) -> list[str]:
    """The lines of a file; none if it cannot be read."""
    try:
        with open(path) as file:
            return file.readlines()
    except OSError:  # this host has no such limit
        return []
