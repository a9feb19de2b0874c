"""Several hosts with a network of limited bandwidth between them, made of network namespaces of this machine.

As root, with iproute2 and util-linux. Each host has its own network, host name, shared memory and address 10.99.0.N on
a bridge in a further namespace, so that nothing of it is seen in the machine's own network.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_TOOLS = ("ip", "tc", "nsenter", "unshare", "taskset")
_ALL = ("-n", "-u", "-i", "-m")


class Hosts:
    """Hosts h1 to hN, each link of `rate` (of `tc`: "1gbit"), while in the context. `folder` is for what they need.

    With `own_cores` each is given one of this machine's cores, in turns: what its network costs takes that core's time.
    """

    def __init__(self, count: int, rate: str, folder: str | os.PathLike, own_cores: bool = False):
        missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
        if os.geteuid() != 0 or missing:
            raise SystemExit(f"hosts on one machine need root and {', '.join(_TOOLS)}; missing: {missing or 'root'}")
        self.names = [f"h{number + 1}" for number in range(count)]
        self._rate = rate
        self._folder = Path(folder)
        self._holders: dict[str, subprocess.Popen] = {}
        cores = sorted(os.sched_getaffinity(0))
        self._cores = len(cores)
        self._on = {
            name: str(cores[number % len(cores)]) if own_cores else ",".join(map(str, cores))
            for number, name in enumerate(self.names)
        }

    def __enter__(self) -> Hosts:
        addresses = "".join(f"10.99.0.{number + 1} {name}\n" for number, name in enumerate(self.names))
        (self._folder / "hosts").write_text("127.0.0.1 localhost\n" + addresses)
        try:
            self._hold("switch")
            self._inside("switch", "ip link add br0 type bridge; ip link set br0 up")
            for number, name in enumerate(self.names):
                self._connect(name, number + 1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for holder in self._holders.values():
            holder.send_signal(signal.SIGKILL)
            holder.wait()
        self._holders.clear()

    def _hold(self, name: str) -> None:
        """A process that keeps the namespaces of `name` alive."""
        ready = self._folder / f"{name}.ready"
        script = (
            f"hostname {name}; mount --bind {self._folder}/hosts /etc/hosts; mount -t tmpfs -o size=4g tmpfs /dev/shm; "
            f"ip link set lo up; touch {ready}; exec sleep infinity"
        )
        command = ["unshare", "--net", "--uts", "--ipc", "--mount", "--propagation", "private", "bash", "-c", script]
        self._holders[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        for _ in range(500):
            if ready.exists():
                return
            time.sleep(0.01)
        raise SystemExit(f"the host {name} did not start")

    def _inside(self, name: str, script: str) -> None:
        subprocess.run([*self.enter(name), "bash", "-ec", script], check=True)

    def _connect(self, name: str, number: int) -> None:
        self._hold(name)
        holder = self._holders[name].pid
        limit = f"root tbf rate {self._rate} burst 256kb latency 50ms"
        self._inside(
            "switch",
            f"ip link add p{number} type veth peer name eth0 netns {holder}; ip link set p{number} master br0 up; "
            f"tc qdisc add dev p{number} {limit}",
        )
        self._inside(
            name, f"ip addr add 10.99.0.{number}/24 dev eth0; ip link set eth0 up; tc qdisc add dev eth0 {limit}"
        )

    def cut(self, name: str) -> None:
        """Pull the cable of host `name`."""
        self._inside("switch", f"ip link set p{self.names.index(name) + 1} down")

    def plug(self, name: str) -> None:
        """Put the cable of host `name` in again."""
        self._inside("switch", f"ip link set p{self.names.index(name) + 1} up")

    def drop(self, name: str) -> None:
        """Lose all packets from and to host `name`, whose cable stays in."""
        self._inside("switch", f"ip link set p{self.names.index(name) + 1} nomaster")

    def power_off(self, name: str) -> None:
        """End host `name` at once: no cable, and no process."""
        self.cut(name)
        keeper = str(self._holders[name].pid)
        for _ in range(3):  # what a process has started meanwhile ends with the next look
            for process in filter(str.isdigit, os.listdir("/proc")):
                if process != keeper and self.has(name, process):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(process), signal.SIGKILL)

    def has(self, name: str, process: str) -> bool:
        """Whether the process of this number runs on host `name`."""
        try:
            return os.readlink(f"/proc/{process}/ns/net") == os.readlink(f"/proc/{self._holders[name].pid}/ns/net")
        except OSError:
            return False  # it has ended

    def enter(self, name: str) -> list[str]:
        """The words that, before a command, run it on host `name`."""
        entered = ["nsenter", "-t", str(self._holders[name].pid), *_ALL, f"--wd={os.getcwd()}", "--"]
        return [*entered, "taskset", "-c", self._on[name]] if name in self._on else entered

    def options(self, per_host: int = 1) -> list[str]:
        """What mpirun, started on the first host, has to be told to run so many ranks on each of them."""
        agent = self._folder / "agent"
        pids = "\n".join(f"{name}) holder={self._holders[name].pid} cores={on};;" for name, on in self._on.items())
        agent.write_text(
            "#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\n"
            f"host=$1; shift\ncase $host in\n{pids}\nesac\n"
            f'exec nsenter -t $holder {" ".join(_ALL)} -- taskset -c $cores /bin/bash -c "$*"\n'
        )
        agent.chmod(0o755)
        hosts = f"--host {','.join(f'{name}:{per_host}' for name in self.names)} --map-by slot --bind-to none"
        crowded = int(per_host * len(self.names) > self._cores)
        network = (
            f"--mca btl tcp,sm,self --mca pml ob1 --mca btl_tcp_if_include eth0 --mca mpi_yield_when_idle {crowded}"
        )
        return f"--mca plm_rsh_agent {agent} {hosts} {network}".split()

    @staticmethod
    def environment(more: dict[str, str]) -> dict[str, str]:
        """That of a process on a host, with `more`."""
        inner = {name: value for name, value in os.environ.items() if not name.startswith("PRTE_MCA_rmaps")}
        folders = os.pathsep.join([str(Path(sys.executable).parent), inner.get("PATH", os.defpath)])
        return {**inner, "PATH": folders, **more}

    def mpirun(self, words: Sequence[str], environment: dict[str, str], per_host: int = 1) -> str:
        """What `per_host` ranks on each host, of `words` with Python, print; ends this program if they fail."""
        exported = " ".join(f"-x {name}" for name in environment).split()
        command = ["mpirun", "--allow-run-as-root", *self.options(per_host), "-n", str(per_host * len(self.names))]
        result = subprocess.run(
            [*self.enter(self.names[0]), *command, *exported, sys.executable, *words],
            env=self.environment(environment),
            capture_output=True,
            text=True,
        )
        if result.returncode:
            raise SystemExit(f"{shlex.join(map(str, words))} failed:\n{result.stdout}\n{result.stderr}")
        return result.stdout
