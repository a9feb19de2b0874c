"""Which hosts answer, and how many ranks go on with those that are left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence

from matex_tf.world import mpirun_options
from matex_tf.world.hosts.host_lists import Host, group_options, is_here

_SECONDS = 30.0  # for all hosts to answer; mpirun itself waits for the network's own time-outs
_LAST_SECONDS = 5.0  # for what asks to end when it is told to


def make_reach_command(mpirun: str, options: Sequence[str], host: Host) -> list[str]:
    """The command that ends well if `host` can be reached in the way that `options` of mpirun say."""
    kept: list[str] = []
    for group in group_options(options):
        name = mpirun_options.parse_option_name(group[0])
        if name.endswith("mca") or name in ("launcher", "launcher-exec", "bootstrap", "prefix", "allow-run-as-root"):
            kept += group
    return [mpirun, *kept, "--host", host.name, "-n", "1", "true"]


def find_answering(hosts: Sequence[Host], mpirun: str, options: Sequence[str]) -> list[Host]:
    """Those of `hosts` that can be reached, all asked at once."""
    allowed = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM") if os.geteuid() == 0 else ()
    environment = {**os.environ, **dict.fromkeys(allowed, "1")}
    asked = {
        host.name: subprocess.Popen(
            make_reach_command(mpirun, options, host),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for host in hosts
        if not is_here(host)
    }
    deadline = time.monotonic() + _SECONDS
    try:
        return [host for host in hosts if host.name not in asked or _ends_well(asked[host.name], deadline)]
    finally:
        _end_children([child for child in asked.values() if child.poll() is None])


def _ends_well(child: subprocess.Popen, deadline: float) -> bool:
    try:
        return child.wait(max(deadline - time.monotonic(), 0)) == 0
    except subprocess.TimeoutExpired:
        return False


def _end_children(children: Sequence[subprocess.Popen]) -> None:
    """End what leads sessions, and what it has started: an srun that waits for cores would go on waiting."""
    for child in children:
        os.killpg(child.pid, signal.SIGTERM)
    deadline = time.monotonic() + _LAST_SECONDS
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(deadline - time.monotonic(), 0))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def count_ranks_on(left: Sequence[Host], all_hosts: Sequence[Host], ranks: int) -> int:
    """How many of `ranks` ranks on `all_hosts` the hosts that are left take: one at least."""
    return max(ranks * sum(host.slots for host in left) // sum(host.slots for host in all_hosts), 1)
