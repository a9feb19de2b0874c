"""Jobs under a real Slurm that lose a host, or are warned of their end: a table of docs/appendix/measurements.md.

    sudo python benchmarks/slurm.py [--only requeued]     # apt-get install slurm-wlm slurmctld slurmd slurm-client

Slurm's own daemons run on four hosts that are network namespaces of this machine (network.py), a slurmd on each. A job
script trains benchmarks/restarts_worker.py by `matex run`, one rank on each of three hosts; while it does, the third is
powered off, or the job gets the signal by which Slurm warns of its end. A job that Slurm puts back takes the fourth
host. The result is compared with that of the script alone.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from faults_hosts import wait_for
from network import Hosts
from restarts import WORKER, curve, difference

COUNT, TAKEN = 4, 3  # hosts, and those of a job
LOST = f"h{TAKEN}"
RATE = "1gbit"
START, PATIENCE = 120, 900
_TOOLS = ("slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "srun")

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
MailProg=/bin/true
NodeName={names} CPUs=2 RealMemory=2000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

# A job that is warned ends with 75 and puts itself back; one that loses a host Slurm puts back, unless `--no-kill`.
JOB = """\
#!/bin/bash
#SBATCH --nodes={nodes} --ntasks-per-node=1 --requeue --open-mode=append --signal=B:USR1@120 {more}
echo "JOB on $SLURM_JOB_NODELIST"
{run} --restarts 3 -n $SLURM_NNODES {options} {worker} {notes} & child=$!
trap 'kill -USR1 $child' USR1
wait $child; code=$?
while kill -0 $child 2> /dev/null; do wait $child; code=$?; done
echo "JOB ends with $code"
[ $code -ne 75 ] || scontrol requeue $SLURM_JOB_ID
exit $code
"""


class Slurm:
    """Slurm's daemons on `hosts`, while in the context; what they need and write is in `folder`."""

    def __init__(self, hosts: Hosts, folder: Path):
        self._hosts = hosts
        self._folder = folder
        self._daemons: list[subprocess.Popen] = []
        self.environment = Hosts.environment({"SLURM_CONF": str(folder / "slurm.conf")})

    def __enter__(self) -> Slurm:
        names = ",".join(self._hosts.names)
        (self._folder / "slurm.conf").write_text(CONFIGURATION.format(folder=self._folder, names=names))
        for name in ("state", *(f"spool.{host}" for host in self._hosts.names)):
            (self._folder / name).mkdir()
        try:
            self._start("h1", "slurmctld", "-D")
            for host in self._hosts.names:
                self._start(host, "slurmd", "-D", "-N", host)
            count = str(len(self._hosts.names))
            expect(lambda: self.ask("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == count, START)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

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

    def ask(self, *words: str) -> str:
        """What a command of Slurm's prints on the first host."""
        result = subprocess.run(
            [*self._hosts.enter("h1"), *words], env=self.environment, capture_output=True, text=True
        )
        return result.stdout

    def state(self, job: str) -> str:
        found = re.search(r"JobState=(\S+)", self.ask("scontrol", "show", "job", job))
        return found.group(1) if found else "gone"


def expect(condition: Callable[[], bool], seconds: float) -> None:
    """Ends this program if `condition` does not come true."""
    if wait_for(condition, seconds) is None:
        raise SystemExit(f"after {seconds} s nothing had come of it")


def power_off(hosts: Hosts, slurm: Slurm, job: str) -> str:
    hosts.power_off(LOST)
    return f"{LOST} powered off"


def warn(hosts: Hosts, slurm: Slurm, job: str) -> str:
    slurm.ask("scancel", "--batch", "--signal=USR1", job)
    return "SIGUSR1"


# What happens, and how the job was submitted.
CASES = {
    "a host lost, requeued": (power_off, "", ""),
    "a host lost, job kept (--no-kill)": (power_off, "--no-kill", ""),
    "a host lost, job kept, --elastic": (power_off, "--no-kill", "--elastic"),
    "warned": (warn, "", ""),
}


def one(title: str, want: list[float], after: float) -> tuple[str, str]:
    """The line of the table of one job, to which something happens so many seconds after it trains; what it printed."""
    happens, more, elastic = CASES[title]
    with tempfile.TemporaryDirectory(prefix="slurm-") as temporary, Hosts(COUNT, RATE, temporary) as hosts:
        folder = Path(temporary, "slurm")
        notes = Path(temporary, "notes")
        for each in (folder, notes):
            each.mkdir()
        with Slurm(hosts, folder) as slurm:
            script, printed = Path(temporary, "job.sh"), Path(temporary, "printed")
            run = f"{sys.executable} -m matex_tf.launch.cli run {elastic}"
            # On one machine several hosts have the same disks, but not the network that Open MPI would choose.
            network = "--mca btl tcp,self --mca pml ob1 --mca btl_tcp_if_include eth0 --bind-to none"
            script.write_text(JOB.format(nodes=TAKEN, more=more, run=run, options=network, worker=WORKER, notes=notes))
            printed.touch()
            slurm.environment.update(
                MATEX_SAVE_SECONDS="0.5",
                MATEX_CACHE_DIR=os.environ.get("MATEX_CACHE_DIR", f"{temporary}/cache"),
                OMPI_MCA_mpi_yield_when_idle="1",
            )
            began = time.monotonic()
            told = slurm.ask("sbatch", "--parsable", f"--chdir={temporary}", f"--output={printed}", str(script))
            job = told.strip()
            if not job.isdigit():
                raise SystemExit(f"sbatch gave {told!r}")
            seen = ["PENDING"]

            def note_state() -> str:
                state = slurm.state(job)
                if state != seen[-1]:
                    seen.append(state)
                return state

            def trains() -> bool:
                if note_state() in ("FAILED", "COMPLETED", "gone"):
                    raise SystemExit(f"the job has not come to train:\n{printed.read_text()}")
                return len(list(notes.iterdir())) == TAKEN

            expect(trains, START + PATIENCE)
            time.sleep(after)
            what = f"{happens(hosts, slurm, job)} at {time.monotonic() - began:.0f} s"
            expect(lambda: note_state() in ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "gone"), PATIENCE)
            text = printed.read_text(errors="replace")
            allocations = re.findall(r"JOB on (\S+)", text)
            again = len(re.findall(r"; restart \d+ of", text))
            found = difference(want, curve(text))
            line = (
                f"| {title} | {what} | {', '.join(seen)} | {', '.join(allocations)} | {again} | "
                f"{time.monotonic() - began:.0f} | {found:.1e} |"
            )
            logs = "".join(path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("*.log")))
            return line, text + ("" if found < 1e-8 else logs)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--only", default="", help="cases that have this in their name")
    asked.add_argument("--mean", type=float, default=8.0, help="seconds of training before it happens, on average")
    asked.add_argument("--seed", type=int, default=1)
    options = asked.parse_args()
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise SystemExit(f"Slurm is needed; missing: {', '.join(missing)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as notes:
        alone = subprocess.run([sys.executable, str(WORKER), notes], capture_output=True, text=True, check=True)
    want = curve(alone.stdout)
    print("| case | what happened | the job's states | on | restarts in a job | seconds | largest difference |")
    print("|---|---|---|---|---|---|---|", flush=True)
    bad = False
    for title in CASES:
        if options.only in title:
            line, text = one(title, want, 2 + draw.expovariate(1 / options.mean))
            print(line, flush=True)
            bad = bad or "COMPLETED" not in line or not float(line.split("|")[-2]) < 1e-8
            print(text, file=sys.stderr, flush=True)
    raise SystemExit(bad)


if __name__ == "__main__":
    main()
