"""The hosts that mpirun's options, a host file or Slurm's allocation name, and options that name others."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matex_tf.world import mpirun_options

_HOST_OPTIONS = ("host", "H", "hosts")
_FILE_OPTIONS = ("hostfile", "machinefile", "f", "default-hostfile")
_HERE = "this host"
RESOLVING = 5.0
"""Seconds for the addresses of all hosts of a list: a nameserver may not answer for long."""


@dataclass(frozen=True)
class Host:
    """A host and how many ranks it takes."""

    name: str
    slots: int


def group_options(options: Sequence[str]) -> list[list[str]]:
    """mpirun's options, each with its words."""
    found: list[list[str]] = []
    at = 0
    while at < len(options):
        word = options[at]
        count = 0 if "=" in word else mpirun_options.ARITY.get(mpirun_options.parse_option_name(word))
        if count is None:
            count = 0
            while at + count + 1 < len(options) and not options[at + count + 1].startswith("-"):
                count += 1
        found.append(list(options[at : at + count + 1]))
        at += count + 1
    return found


def _read_value(group: Sequence[str]) -> str:
    return group[0].partition("=")[2] if "=" in group[0] else (group[1] if len(group) > 1 else "")


def list_hosts(options: Sequence[str], environment: Mapping[str, str], folder: str = "") -> list[Host]:
    """The hosts that `options` or Slurm's allocation name, in their order; empty where the launcher finds them.

    A host file is looked for in `folder`, or else in the current one.
    """
    found: dict[str, int] = {}
    for group in group_options(options):
        name = mpirun_options.parse_option_name(group[0])
        if name in _HOST_OPTIONS:
            for part in _read_value(group).split(","):
                host, colon, number = part.partition(":")
                found[host] = found.get(host, 0) + (int(number) if colon and number.isdigit() else 1)
        elif name in _FILE_OPTIONS:
            for host, slots in _read_host_file(os.path.join(folder, _read_value(group))):
                found[host] = found.get(host, 0) + slots
    if not found and environment.get("SLURM_JOB_NODELIST"):
        names = _list_slurm_names(environment["SLURM_JOB_NODELIST"])
        tasks = _parse_slurm_slots(environment.get("SLURM_TASKS_PER_NODE", ""))
        found = dict(zip(names, [*tasks, *[1] * len(names)]))
    return [Host(name, slots) for name, slots in found.items() if name]


def _read_host_file(path: str) -> list[tuple[str, int]]:
    """The lines of a host file: `name`, `name slots=4` (Open MPI) or `name:4` (MPICH)."""
    try:
        with open(path) as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except OSError:
        return []  # mpirun has said so
    found = []
    for line in filter(None, lines):
        name, _, slots = line.split()[0].partition(":")
        given = re.search(r"\bslots\s*=\s*(\d+)", line)
        found.append((name, int(given.group(1) if given else slots if slots.isdigit() else 1)))
    return found


def _list_slurm_names(text: str) -> list[str]:
    try:
        result = subprocess.run(["scontrol", "show", "hostnames", text], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return result.stdout.split() if result.returncode == 0 else []


def _parse_slurm_slots(text: str) -> list[int]:
    """The tasks that each host takes, from Slurm's `2(x3),1`."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, times in found for _ in range(int(times or 1))]


def is_here(host: Host) -> bool:
    return host.name in ("localhost", "127.0.0.1", socket.gethostname(), socket.gethostname().split(".")[0])


def find_named(hosts: Sequence[Host], name: str) -> Host | None:
    """That of `hosts` which calls itself `name`, itself named so, by an alias or by an address; None if none does.

    Addresses are those of the system's resolver. Where none is the same, names are compared up to their first dot: a
    host may have an address in each of several networks.
    """
    if alike := next((host for host in hosts if host.name == name), None):
        return alike
    found = _resolve_names([name, *(host.name for host in hosts)])
    if same := next((host for host in hosts if found[name] & found[host.name]), None):
        return same
    word = name.partition(".")[0]
    of_word = [host for host in hosts if host.name.partition(".")[0] == word]
    return of_word[0] if len(of_word) == 1 else None


def _resolve_names(names: Sequence[str]) -> dict[str, set[str]]:
    """Their addresses; none of those that the resolver has not answered within `RESOLVING` seconds in all."""
    found: dict[str, set[str]] = {}

    def resolve(name: str) -> None:
        found[name] = _find_addresses(name)

    # Signals act here meanwhile, and who is still waiting for a nameserver at the end of the program is left.
    threads = [threading.Thread(target=resolve, args=(name,), daemon=True) for name in dict.fromkeys(names)]
    until = time.monotonic() + RESOLVING
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0.0))
    return {name: found.get(name, set()) for name in names}


def _find_addresses(name: str) -> set[str]:
    """The addresses of a host, one word for all of this one; empty where the resolver has none."""
    if is_here(Host(name, 1)):
        return {_HERE}
    try:
        found = {str(address[0]) for *_, address in socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)}
    except (OSError, UnicodeError):  # it is not known, or no name can be so
        return set()
    return {_HERE if _is_own(address) else address for address in found}


def _is_own(address: str) -> bool:
    """Whether this host has the address, also one that its own name does not lead to: 127.0.1.1 does so often.

    What is sent to an address of one's own comes from it, so the kernel says. A second one of the same network may not.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as end:  # no IPv6 in some kernels
            end.connect((address, 9))  # sends nothing
            return ipaddress.ip_address(address).is_loopback or end.getsockname()[0] == address
    except OSError:
        return False


def drop_options(options: Sequence[str], names: Sequence[str]) -> list[str]:
    """`options` of mpirun less those of these names."""
    return [
        word
        for group in group_options(options)
        if mpirun_options.parse_option_name(group[0]) not in names
        for word in group
    ]


def replace_hosts(options: Sequence[str], left: Sequence[Host], family: str) -> list[str]:
    """`options` of mpirun for the hosts that are left."""
    kept = drop_options(options, (*_HOST_OPTIONS, *_FILE_OPTIONS))
    if family == mpirun_options.OPENMPI:
        return [*kept, "--host", ",".join(f"{host.name}:{host.slots}" for host in left)]
    return [*kept, "-hosts", ",".join(f"{host.name}:{host.slots}" for host in left)]
