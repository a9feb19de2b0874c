"""Finds the hosts that answer, on which mpirun can start the command `true`. `matex run` restarts on them after a
loss.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence

from matex_tf.world import child_process, mpirun_options
from matex_tf.world.hosts.host_lists import Host, is_here

SECONDS = 30.0  # seconds for all hosts to answer; mpirun alone would wait for the network's timeouts
_REACH_OPTIONS = "launcher launcher-exec launch-agent bootstrap bootstrap-exec prefix allow-run-as-root".split()
_LAST_SECONDS = 5.0  # seconds between SIGTERM and SIGKILL


def make_reach_command(mpirun: str, options: Sequence[str], host: Host) -> list[str]:
    """The command that succeeds if `host` can be reached in the way that mpirun's `options` choose."""
    # Only the options that may say how mpirun starts a process on another host.
    reach_options: list[str] = []
    for group in mpirun_options.group_options(options):
        name = mpirun_options.parse_option_name(group[0])
        if name.endswith("mca") or name in _REACH_OPTIONS:
            reach_options += group
    return [mpirun, *reach_options, "--host", host.name, "-n", "1", "true"]


def ask_hosts(hosts: Sequence[Host], mpirun: str, options: Sequence[str]) -> dict[str, subprocess.Popen]:
    """Start a process for each of `hosts` except this one, keyed by host name. It succeeds once the host answers."""
    root_variables = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM") if os.geteuid() == 0 else ()
    environment = {**os.environ, **dict.fromkeys(root_variables, "1")}
    # This process blocks signals, SIGTERM among them, while the run's mpirun runs. A child would inherit that, and
    # `end_children` could not end it by SIGTERM. So the child starts with no signal blocked.
    prepare = child_process.make_preparation((), os.getpid())
    queries: dict[str, subprocess.Popen] = {}
    for host in (host for host in hosts if not is_here(host)):
        queries[host.name] = subprocess.Popen(
            make_reach_command(mpirun, options, host), env=environment, start_new_session=True, preexec_fn=prepare,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    return queries


def find_answering(hosts: Sequence[Host], mpirun: str, options: Sequence[str]) -> list[Host]:
    """The hosts that answer within `SECONDS`. All are asked at once."""
    queries = ask_hosts(hosts, mpirun, options)
    deadline = time.monotonic() + SECONDS
    try:
        return [host for host in hosts if host.name not in queries or _ends_well(queries[host.name], deadline)]
    finally:
        end_children(queries.values())


def _ends_well(child: subprocess.Popen, deadline: float) -> bool:
    """Whether the child succeeds before `deadline`, in seconds of time.monotonic."""
    try:
        return child.wait(max(deadline - time.monotonic(), 0)) == 0
    except subprocess.TimeoutExpired:
        return False


def end_children(queries: Iterable[subprocess.Popen]) -> None:
    """End the processes that still run, each with its process group.

    Under Slurm, mpirun starts an srun, which may wait for free cores. After the end of mpirun alone, it would wait on.
    """
    children = [child for child in queries if child.poll() is None]
    for child in children:
        os.killpg(child.pid, signal.SIGTERM)
    deadline = time.monotonic() + _LAST_SECONDS
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(deadline - time.monotonic(), 0))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
