"""Parses the hosts of mpirun's options, of a host file or of Slurm's allocation, and replaces hosts in options."""

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
"""Time limit in seconds for resolving all hosts of a list: a name server may not answer."""


@dataclass(frozen=True)
class Host:
    """A host and its number of slots for ranks."""

    name: str
    slots: int


def group_options(options: Sequence[str]) -> list[list[str]]:
    """Group mpirun's options, each with its words."""
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
    """The hosts of `options` or of Slurm's allocation, in their order; empty if the launcher chooses them.

    A relative path of a host file is resolved in `folder`, or else in the current folder.
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
    """Parse the lines of a host file: `name`, `name slots=4` (Open MPI) or `name:4` (MPICH)."""
    try:
        with open(path) as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except OSError:
        return []  # mpirun reports the error
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
    """The number of tasks of each host, from Slurm's `2(x3),1`."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, times in found for _ in range(int(times or 1))]


def is_here(host: Host) -> bool:
    return host.name in ("localhost", "127.0.0.1", socket.gethostname(), socket.gethostname().split(".")[0])


def find_named(hosts: Sequence[Host], name: str) -> Host | None:
    """The host that calls itself `name`, listed by this name, an alias or an address; None if there is none.

    Compares addresses of the system's resolver; if none match, names up to the first dot, because a host may have an
    address in each of several networks.
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
    """The addresses of hosts; empty for hosts that are not resolved within `RESOLVING` seconds in total."""
    found: dict[str, set[str]] = {}

    def resolve(name: str) -> None:
        found[name] = _find_addresses(name)

    # On threads: signals are handled meanwhile, and threads that still wait at the end of the program are abandoned.
    threads = [threading.Thread(target=resolve, args=(name,), daemon=True) for name in dict.fromkeys(names)]
    until = time.monotonic() + RESOLVING
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0.0))
    return {name: found.get(name, set()) for name in names}


def _find_addresses(name: str) -> set[str]:
    """The addresses of a host; one fixed word for all addresses of this host; empty if it cannot be resolved."""
    if is_here(Host(name, 1)):
        return {_HERE}
    try:
        found = {str(address[0]) for *_, address in socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)}
    except (OSError, UnicodeError):  # unknown, or an invalid name
        return set()
    return {_HERE if _is_own(address) else address for address in found}


def _is_own(address: str) -> bool:
    """Whether this host has the address, even if its own name does not resolve to it, as often with 127.0.1.1.

    The kernel sends packets to an own address from that address, with exceptions for a second address in a network.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as end:  # some kernels lack IPv6
            end.connect((address, 9))  # sends nothing
            return ipaddress.ip_address(address).is_loopback or end.getsockname()[0] == address
    except OSError:
        return False


def drop_options(options: Sequence[str], names: Sequence[str]) -> list[str]:
    """The `options` of mpirun without the options `names`."""
    return [
        word
        for group in group_options(options)
        if mpirun_options.parse_option_name(group[0]) not in names
        for word in group
    ]


def replace_hosts(options: Sequence[str], left: Sequence[Host], family: str) -> list[str]:
    """The `options` of mpirun for the remaining hosts `left`."""
    kept = drop_options(options, (*_HOST_OPTIONS, *_FILE_OPTIONS))
    if family == mpirun_options.OPENMPI:
        return [*kept, "--host", ",".join(f"{host.name}:{host.slots}" for host in left)]
    return [*kept, "-hosts", ",".join(f"{host.name}:{host.slots}" for host in left)]
