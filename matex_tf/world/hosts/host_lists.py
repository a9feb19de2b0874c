"""Parses the hosts of mpirun's options, of a host file or of Slurm's allocation, and replaces hosts in options.

`matex run` uses it to continue on other hosts after a loss, and to recognize a host by any of its names.
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matex_tf.world import mpirun_options

_HOST_OPTIONS = ("host", "H", "hosts")  # mpirun's options with a list of hosts
_FILE_OPTIONS = ("hostfile", "machinefile", "f", "default-hostfile")  # with the path of a host file
_HERE = "this host"  # stands for all addresses of this host
RESOLVING = 5.0
"""Time limit in seconds for resolving all hosts of a list: a name server may not answer."""


@dataclass(frozen=True)
class Host:
    """A host and its number of slots for ranks."""

    name: str
    slots: int


def list_hosts(options: Sequence[str], environment: Mapping[str, str], folder: str = "") -> list[Host]:
    """The hosts of `options` or of Slurm's allocation, in their order; empty if the launcher chooses them.

    Args:
        environment: the variables with Slurm's allocation.
        folder: the folder of relative paths of host files; "": the current folder.
    """
    slots_of: dict[str, int] = {}  # by host; slots of a host that is listed twice are added
    for group in mpirun_options.group_options(options):
        name = mpirun_options.parse_option_name(group[0])
        if name in _HOST_OPTIONS:
            for entry in mpirun_options.read_value(group).split(","):
                host, colon, slots_text = entry.partition(":")
                slots_of[host] = slots_of.get(host, 0) + (int(slots_text) if colon and slots_text.isdigit() else 1)
        elif name in _FILE_OPTIONS:
            for host, slots in _read_host_file(os.path.join(folder, mpirun_options.read_value(group))):
                slots_of[host] = slots_of.get(host, 0) + slots
    if not slots_of and environment.get("SLURM_JOB_NODELIST"):
        names = _list_slurm_names(environment["SLURM_JOB_NODELIST"])
        slot_counts = _parse_slurm_slots(environment.get("SLURM_TASKS_PER_NODE", ""))
        slots_of = dict(zip(names, itertools.chain(slot_counts, itertools.repeat(1))))  # further hosts have one slot
    return [Host(name, slots) for name, slots in slots_of.items() if name]


def _read_host_file(path: str) -> list[tuple[str, int]]:
    """Parse the lines of a host file: `name`, `name slots=4 max_slots=8` (Open MPI) or `name:4` (MPICH)."""
    try:
        with open(path) as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except OSError:
        return []  # mpirun reports the error
    hosts = []
    for line in filter(None, lines):
        name, _, slots_text = line.split()[0].partition(":")
        values = dict(re.findall(r"([\w-]+)\s*=\s*(\d+)", line))
        # Without slots, max_slots is their number.
        slots_text = next((values[key] for key in ("slots", "max_slots", "max-slots") if key in values), slots_text)
        hosts.append((name, int(slots_text) if slots_text.isdigit() else 1))
    return hosts


def _list_slurm_names(node_list: str) -> list[str]:
    try:
        result = subprocess.run(
            ["scontrol", "show", "hostnames", node_list], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return result.stdout.split() if result.returncode == 0 else []


def _parse_slurm_slots(text: str) -> list[int]:
    """The number of tasks of each host, from Slurm's `2(x3),1`."""
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, hosts in counts for _ in range(int(hosts or 1))]


def is_here(host: Host) -> bool:
    return host.name in ("localhost", "127.0.0.1", socket.gethostname(), socket.gethostname().split(".")[0])


def find_named(hosts: Sequence[Host], name: str) -> Host | None:
    """The host that calls itself `name`, listed by this name, an alias or an address; None if there is none.

    Compares the addresses that the system's resolver finds. A host may have an address in each of several networks, so
    that no address matches. Then the names up to the first dot are compared, and exactly one must match.
    """
    if with_name := next((host for host in hosts if host.name == name), None):
        return with_name
    addresses = _resolve_names([name, *(host.name for host in hosts)])
    if with_address := next((host for host in hosts if addresses[name] & addresses[host.name]), None):
        return with_address
    short_name = name.partition(".")[0]
    with_short_name = [host for host in hosts if host.name.partition(".")[0] == short_name]
    return with_short_name[0] if len(with_short_name) == 1 else None


def _resolve_names(names: Sequence[str]) -> dict[str, set[str]]:
    """The addresses of hosts; empty for hosts that are not resolved within `RESOLVING` seconds in total."""
    addresses: dict[str, set[str]] = {}

    def resolve(name: str) -> None:
        addresses[name] = _find_addresses(name)

    # On threads: signals are handled meanwhile, and threads that still wait at the end of the program are abandoned.
    threads = [threading.Thread(target=resolve, args=(name,), daemon=True) for name in dict.fromkeys(names)]
    deadline = time.monotonic() + RESOLVING
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.0))
    return {name: addresses.get(name, set()) for name in names}


def _find_addresses(name: str) -> set[str]:
    """The addresses of a host; one fixed word for all addresses of this host; empty if it cannot be resolved."""
    if is_here(Host(name, 1)):
        return {_HERE}
    try:
        infos = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):  # unknown, or an invalid name
        return set()
    addresses = {str(address[0]) for *_, address in infos}
    return {_HERE if _is_own(address) else address for address in addresses}


def _is_own(address: str) -> bool:
    """Whether this host has the address. The host's own name may not resolve to it, but to 127.0.1.1.

    The kernel sends packets to an own address from the same address. So a socket that is connected to the address shows
    whether this host has it. A second address in one network may be an exception.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as connection:  # some kernels lack IPv6
            connection.connect((address, 9))  # sends nothing
            return ipaddress.ip_address(address).is_loopback or connection.getsockname()[0] == address
    except OSError:
        return False


def drop_options(options: Sequence[str], names: Sequence[str]) -> list[str]:
    """The `options` of mpirun without the options `names`."""
    return [
        word
        for group in mpirun_options.group_options(options)
        if mpirun_options.parse_option_name(group[0]) not in names
        for word in group
    ]


def replace_hosts(options: Sequence[str], hosts: Sequence[Host], family: str) -> list[str]:
    """The `options` of mpirun with these hosts. `family`: the MPI, by its name in `mpirun_options`."""
    option = "--host" if family == mpirun_options.OPENMPI else "-hosts"
    host_list = ",".join(f"{host.name}:{host.slots}" for host in hosts)
    return [*drop_options(options, (*_HOST_OPTIONS, *_FILE_OPTIONS)), option, host_list]
