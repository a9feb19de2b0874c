"""Jobs of `matex submit` under a real Slurm, to which something happens: see docs/reliability.md.

    sudo python benchmarks/slurm.py [--only requeued]     # apt-get install slurm-wlm slurmctld slurmd slurm-client

Slurm's own daemons run on four hosts that are network namespaces of this machine (network.py), a slurmd on each.
`matex submit --slurm` queues benchmarks/restarts_worker.py, one rank on each of three hosts. While it trains, the third
is powered off, or the job is preempted, warned, out of time or cancelled. One that Slurm puts back may take the fourth
host. The result, and which batch each update had, are compared with those of the script alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from faults_hosts import wait_for
from network import Hosts
from restarts import WORKER, curve, difference

COUNT = 4  # hosts, of which a job takes all but one
RATE = "1gbit"
START, PATIENCE = 120, 900
TOOLS = ("slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "srun")
# On one machine several hosts have the same disks, but not the network that Open MPI would choose.
NETWORK = "--mca btl tcp,self --mca pml ob1 --mca btl_tcp_if_include eth0 --bind-to none"

CONFIGURATION = """\
ClusterName=hosts
SlurmctldHost=h1
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
SlurmUser=root
SlurmdUser=root
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
TmpFS={folder}/scratch.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=5
SchedulerParameters=bf_interval=2,sched_interval=2
{signalled}
EnforcePartLimits=ALL
MailProg=/bin/true
NodeName={names} CPUs=2 RealMemory=2000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime={grace}
PartitionName=closed Nodes=ALL MaxTime=5 AllowAccounts=physics State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
"""
URGENT = ("--partition=urgent", "--exclusive", "--wrap=sleep 1", "--output=/dev/null")


class Slurm:
    """Slurm's daemons on `hosts`, while in the context; what they need and write is in `folder`.

    With `signalled`, jobs that others preempt get their own signal, and a minute to end. `more` is added to its
    configuration.
    """

    def __init__(self, hosts: Hosts, folder: Path, signalled: bool = False, more: str = ""):
        self._hosts = hosts
        self._folder = folder
        self._configuration = CONFIGURATION.format(
            folder=folder,
            names=",".join(hosts.names),
            # Later versions of Slurm have it as PreemptParameters=send_user_signal, and take this, too.
            signalled="SlurmctldParameters=preempt_send_user_signal" if signalled else "",
            grace=60 if signalled else 0,
        )
        self._configuration += more
        self._daemons: list[subprocess.Popen] = []
        self.environment = Hosts.environment({"SLURM_CONF": str(folder / "slurm.conf")})

    def __enter__(self) -> Slurm:
        (self._folder / "slurm.conf").write_text(self._configuration)
        places = (f"{kind}.{host}" for kind in ("spool", "scratch") for host in self._hosts.names)
        for name in ("state", *places):
            (self._folder / name).mkdir()
        try:
            self._start("h1", "slurmctld", "-D")
            self.boot(*self._hosts.names)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts.names:
            self._hosts.power_off(host)  # jobs outlive Slurm's daemons
        for daemon in self._daemons:
            daemon.wait()

    def boot(self, *hosts: str) -> None:
        """Start Slurm on `hosts`, until all hosts are free."""
        for host in hosts:
            self._hosts.plug(host)
            self._start(host, "slurmd", "-D", "-N", host)
        count = str(len(self._hosts.names))
        expect(lambda: self.ask("sinfo", "-h", "-t", "idle", "-p", "all", "-o", "%D").strip() == count, START)

    def _start(self, host: str, *words: str) -> None:
        self._daemons.append(
            subprocess.Popen(
                [*self._hosts.enter(host), *words],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )

    def run(self, *words: str, folder: str | os.PathLike = ".") -> subprocess.CompletedProcess[str]:
        """A command on the first host, where users log in, in `folder`."""
        return subprocess.run(
            [*self._hosts.enter("h1"), "env", "-C", str(folder), *words],
            env=self.environment,
            capture_output=True,
            text=True,
        )

    def ask(self, *words: str) -> str:
        """What a command of Slurm's prints on the first host."""
        return self.run(*words).stdout

    def state(self, job: str) -> str:
        found = re.search(r"JobState=(\S+)", self.ask("scontrol", "show", "job", job))
        return found.group(1) if found else "gone"


def expect(condition: Callable[[], bool], seconds: float) -> None:
    """Ends this program if `condition` does not come true."""
    if wait_for(condition, seconds) is None:
        raise SystemExit(f"after {seconds} s nothing had come of it")


class Trial:
    """A job that trains under `matex submit` on all hosts but one, in a folder of its own."""

    def __init__(self, hosts: Hosts, slurm: Slurm, folder: Path, options: Sequence[str]):
        self.hosts, self.slurm, self.folder = hosts, slurm, folder
        self.taken = len(hosts.names) - 1
        self.notes = folder / "notes"
        self.notes.mkdir()
        words = ["submit", "--slurm", "--nodes", str(self.taken), "--name", "train", "--no-follow", "--run", NETWORK]
        result = self.matex(*words, *options, str(WORKER), str(self.notes))
        if result.returncode:
            raise SystemExit(f"matex submit failed:\n{result.stderr}")
        self.run_folder = folder / "runs" / "train-1"
        self.job = json.loads((self.run_folder / "job.json").read_text())["job"]
        self.states = ["PENDING"]
        self.nodes: list[str] = []

    def matex(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`matex` as it is typed on the first host."""
        return self.slurm.run(sys.executable, "-m", "matex_tf.launch.cli", *words, folder=self.folder)

    @property
    def text(self) -> str:
        """What the job has printed."""
        output = self.run_folder / "output"
        return output.read_text(errors="replace") if output.is_file() else ""

    def look(self) -> str:
        """The job's state now; noted where it is a new one."""
        shown = self.slurm.ask("scontrol", "show", "job", self.job)
        state = next(iter(re.findall(r"JobState=(\S+)", shown)), "gone")
        if state != self.states[-1]:
            self.states.append(state)
            if state == "RUNNING":
                self.nodes += re.findall(r" NodeList=(\S+)", shown)
        return state

    def trains(self) -> bool:
        """Whether each rank has come to train."""
        if self.look() in ("FAILED", "COMPLETED", "gone"):
            raise SystemExit(f"the job has not come to train:\n{self.text}")
        return len(list(self.notes.iterdir())) == self.taken and "BATCH" in self.text

    def ended(self) -> bool:
        return self.look() in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "gone")


def power_off(trial: Trial) -> str:
    lost = trial.hosts.names[trial.taken - 1]
    trial.hosts.power_off(lost)
    return f"{lost} powered off"


def warn(trial: Trial) -> str:
    trial.slurm.ask("scancel", "--batch", "--signal=USR1", trial.job)
    return "SIGUSR1"


def preempt(trial: Trial) -> str:
    """A job of a partition that comes first wants all hosts."""
    trial.slurm.ask("sbatch", *URGENT, f"--nodes={len(trial.hosts.names)}")
    return "preempted"


def wait(trial: Trial) -> str:
    return "nothing"


def cancel(trial: Trial) -> str:
    """Cancelled, it is not queued again; its script is, by hand, from what it kept."""
    expect(lambda: (trial.run_folder / "state").is_dir() and any((trial.run_folder / "state").iterdir()), 30)
    result = trial.matex("cancel", trial.job)
    expect(trial.ended, PATIENCE)
    if result.returncode or trial.states[-1] != "CANCELLED" or trial.slurm.ask("squeue", "-h").strip():
        raise SystemExit(f"the job goes on: {trial.states}, {result.stderr}")
    told = trial.slurm.run("sbatch", "--parsable", "runs/train-1/job.sh", folder=trial.folder)
    trial.job = told.stdout.strip()
    return "`matex cancel`, then `sbatch job.sh`"


@dataclass(frozen=True)
class Case:
    """What happens, how the job was submitted, and whether ranks are asked to keep their state before they end."""

    happens: Callable[[Trial], str]
    options: tuple[str, ...] = ()
    signalled: bool = False
    asked: bool = False
    step: float = 0.02  # seconds that each takes longer


CASES = {
    "a host lost, requeued": Case(power_off),
    "a host lost, job kept (`--sbatch=--no-kill`)": Case(power_off, ("--sbatch=--no-kill",)),
    "a host lost, job kept, `--elastic`": Case(power_off, ("--sbatch=--no-kill", "--run", "--elastic")),
    "warned": Case(warn, asked=True),
    "the time limit (`--time 3`)": Case(wait, ("--time", "3"), asked=True, step=0.3),
    "preempted with a grace time": Case(preempt, signalled=True, asked=True),
    "preempted without a signal": Case(preempt),
    "cancelled": Case(cancel),
}


@dataclass(frozen=True)
class Outcome:
    """What became of a job. `again` counts batches that were trained more than once, from an older state."""

    happened: str
    states: tuple[str, ...]
    nodes: tuple[str, ...]
    restarts: int
    seconds: float
    difference: float
    same_batches: bool
    again: int
    text: str

    @property
    def is_well(self) -> bool:
        return self.states[-1] == "COMPLETED" and self.difference < 1e-10 and self.same_batches


def batches(text: str) -> dict[tuple[int, int], str]:
    """Which epoch and batch each update had that counts, by the call of `fit` and the number of the update."""
    found = re.findall(r"^BATCH (\d+) (\d+) (\d+ \d+)$", text, re.MULTILINE)
    return {(int(call), int(update)): batch for call, update, batch in found}


def one(case: Case, alone: str, after: float, count: int = COUNT) -> Outcome:
    """A job on all but one of `count` hosts, to which something happens so many seconds after it trains."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as temporary, Hosts(count, RATE, temporary) as hosts:
        folder = Path(temporary, "slurm")
        folder.mkdir()
        with Slurm(hosts, folder, case.signalled) as slurm:
            slurm.environment.update(
                MATEX_SAVE_SECONDS="0.5",
                MATEX_CACHE_DIR=os.environ.get("MATEX_CACHE_DIR", f"{temporary}/cache"),
                OMPI_MCA_mpi_yield_when_idle="1",
                XDG_CONFIG_HOME=temporary,
                STEP_SECONDS=str(case.step),
            )
            began = time.monotonic()
            trial = Trial(hosts, slurm, Path(temporary), case.options)
            expect(trial.trains, START + PATIENCE)
            time.sleep(after)
            at = time.monotonic() - began
            happened = f"{case.happens(trial)} at {at:.0f} s"
            expect(trial.ended, PATIENCE)
            text = trial.text
            found = difference(curve(alone), curve(text))
            logs = "".join(path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("*.log")))
            return Outcome(
                happened,
                tuple(trial.states),
                tuple(trial.nodes),
                len(re.findall(r"; restart \d+ of", text)),
                time.monotonic() - began,
                found,
                batches(text) == batches(alone),
                len(re.findall("^BATCH ", text, re.MULTILINE)) - len(batches(text)),
                text + ("" if found < 1e-10 else logs),
            )


def run_alone() -> str:
    """What the script prints alone."""
    with tempfile.TemporaryDirectory() as notes:
        return subprocess.run([sys.executable, str(WORKER), notes], capture_output=True, text=True, check=True).stdout


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--only", default="", help="cases that have this in their name")
    asked.add_argument("--mean", type=float, default=8.0, help="seconds of training before it happens, on average")
    asked.add_argument("--seed", type=int, default=1)
    options = asked.parse_args()
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise SystemExit(f"Slurm is needed; missing: {', '.join(missing)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    draw = random.Random(options.seed)
    alone = run_alone()
    print(
        "| case | what happened | the job's states | on | restarts in a job | batches trained again | seconds "
        "| largest difference |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    well = True
    for title, case in CASES.items():
        if options.only in title:
            found = one(case, alone, 1 + min(draw.expovariate(1 / options.mean), 2 * options.mean))
            well = well and found.is_well and not (case.asked and found.again)
            print(
                f"| {title} | {found.happened} | {', '.join(found.states)} | {', '.join(found.nodes)} | "
                f"{found.restarts} | {found.again} | {found.seconds:.0f} | {found.difference:.1e} |",
                flush=True,
            )
            print(re.sub("^BATCH .*\n", "", found.text, flags=re.MULTILINE), file=sys.stderr, flush=True)
    raise SystemExit(not well)


if __name__ == "__main__":
    main()
