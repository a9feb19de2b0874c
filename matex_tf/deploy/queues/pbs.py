"""PBS: OpenPBS, PBS Professional, and Slurm's commands of the same names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from matex_tf.deploy.job import ENDED, RUNNING, WAITING, State, format_duration
from matex_tf.deploy.options import parse_time
from matex_tf.deploy.queues.scheduler import OWN_OUTPUT, Queued, Refusal, Scheduler, make_state

_STATES = {
    "Q": (WAITING, "QUEUED"),
    "W": (WAITING, "WAITING"),
    "H": (WAITING, "HELD"),
    "T": (WAITING, "MOVING"),
    "S": (WAITING, "SUSPENDED"),
    "B": (RUNNING, "RUNNING"),
    "R": (RUNNING, "RUNNING"),
    "E": (RUNNING, "ENDING"),
    "F": (ENDED, "FINISHED"),
    "X": (ENDED, "FINISHED"),
    "C": (ENDED, "FINISHED"),
}
_QUEUES = ("bash", "-c", "qstat -Q | awk '/^[^- ]/ && $1 != \"Queue\" { print $1 }'")


@dataclass(frozen=True, kw_only=True)
class PBS(Queued):
    """The options of a PBS job."""


class Pbs(Scheduler):
    """PBS. Written from its reference guide, tested with Slurm's `qsub`, `qstat` and `qdel`."""

    kind = PBS
    title = "PBS"
    head = "#PBS"
    own_number = '"$PBS_JOBID"'
    opening = 'cd "$PBS_O_WORKDIR" || exit 78\n'  # a job begins in the home folder
    hosts = 'cat "$PBS_NODEFILE"'
    again = 'qsub -W depend=afterany:"$before" {script}'
    find_number = re.compile(r"^(\d+(?:\[\])?(?:\.[\w.-]+)?)\s*$", re.MULTILINE)
    commands = ("qsub", "qstat", "qdel")
    unknown = re.compile(r"Unknown Job|has finished|Unknown option", re.IGNORECASE)  # Slurm's qstat has no -x
    refusals = (
        Refusal("unknown queue", "there is no such queue", "The queues are", _QUEUES),
        Refusal("invalid partition", "there is no such queue", "The queues are", _QUEUES),
        Refusal("unauthorized", "you may not submit there: choose another --queue or --account"),
        Refusal("not enabled", "the queue takes no jobs now: choose another --queue", "The queues are", _QUEUES),
        Refusal("invalid account", "the account is not known, or you may not use it"),
        Refusal("violates queue", "the queue allows less: lower --nodes, --time or --cpus", "The queues are", _QUEUES),
        Refusal("more processors", "the nodes have fewer cores: lower --nodes, --cpus or --ranks-per-node"),
        Refusal("unknown resource", "this PBS does not know a resource that is asked for"),
        Refusal("illegal attribute", "PBS does not take an option of the job"),
        Refusal("dependency", "a job that the new one is to wait for is not there"),
        Refusal("cannot connect", "the server of PBS does not answer: try again in a few minutes"),
    )

    def list_options(self, asked: Queued, folder: str) -> list[str]:
        select = f"select={asked.nodes}:ncpus={asked.node_cores}:mpiprocs={asked.ranks_per_node}"
        if asked.gpus_per_node:
            select += f":ngpus={asked.gpus_per_node}"
        return [
            f"-N {asked.plain_name}",
            f"-l {select}",
            f"-l place=scatter{'' if asked.cpus else ':exclhost'}",
            *([f"-l walltime={format_duration(parse_time(asked.time))}"] if asked.time else []),
            *([f"-A {asked.account}"] if asked.account else []),
            *([f"-q {asked.queue}"] if asked.queue else []),
            f"-o {folder}/{OWN_OUTPUT}",
            "-j oe",
            "-r y",
            "-V",
            *asked.option,
        ]

    def make_submit_command(self, script: str) -> tuple[list[str], bool]:
        return ["qsub", script], False

    def list_state_commands(self, number: str) -> list[list[str]]:
        return [["qstat", "-f", number], ["qstat", "-x", "-f", number]]

    def read_state(self, text: str) -> State | None:
        text = re.sub(r"\n\t(?!\w+ = )", "", text)  # a long value continues on the next line
        found = {name.lower(): value for name, value in re.findall(r"^\s+([\w.]+) = (.*)$", text, re.MULTILINE)}
        if "job_state" not in found:
            return None
        hosts = sorted({part.partition("/")[0] for part in found.get("exec_host", "").split("+") if part})
        code = found.get("exit_status", "")
        return make_state(
            _STATES, found["job_state"], ", ".join(hosts), found.get("comment", ""), _read_code(code) if code else None
        )

    def make_cancel_command(self, number: str) -> list[str]:
        return ["qdel", number]


def _read_code(text: str) -> int:
    """Convert a PBS exit status to a shell's exit code: 256 or more is a signal, a negative status a job that could not
    run.
    """
    code = int(text)
    return 1 if code < 0 else 128 + code % 128 if code >= 256 else code
