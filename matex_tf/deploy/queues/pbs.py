"""PBS: OpenPBS, PBS Professional, and Slurm's commands of the same names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from matex_tf.deploy.job import ENDED, RUNNING, WAITING, State, format_duration
from matex_tf.deploy.options import parse_time
from matex_tf.deploy.queues.scheduler import OWN_OUTPUT, QueueCluster, Queued
from matex_tf.deploy.refusals import Refusal

# Prints the names of the queues: the lines of qstat -Q without its heading.
_QUEUES = ("bash", "-c", "qstat -Q | awk '/^[^- ]/ && $1 != \"Queue\" { print $1 }'")


@dataclass(frozen=True, kw_only=True)
class PBS(Queued):
    """The options of a PBS job."""


class PbsCluster(QueueCluster):
    """PBS. Written from its reference guide, tested with Slurm's `qsub`, `qstat` and `qdel`."""

    kind = PBS
    option_prefix = "#PBS"
    own_number = '"$PBS_JOBID"'
    opening = 'cd "$PBS_O_WORKDIR" || exit 78\n'  # a job begins in the home folder
    hosts = 'cat "$PBS_NODEFILE"'
    submit_successor = 'qsub -W depend=afterany:"$before" {script}'
    number_pattern = re.compile(r"^(\d+(?:\[\])?(?:\.[\w.-]+)?)\s*$", re.MULTILINE)
    submit_command = ("qsub",)
    list_command = "qstat"
    state_commands = (("qstat", "-f"), ("qstat", "-x", "-f"))
    cancel_command = ("qdel",)
    words = {
        WAITING: {"Q": "QUEUED", "W": "WAITING", "H": "HELD", "T": "MOVING", "S": "SUSPENDED"},
        RUNNING: {"B": "RUNNING", "R": "RUNNING", "E": "ENDING"},
        ENDED: {"F": "FINISHED", "X": "FINISHED", "C": "FINISHED"},
    }
    unknown_pattern = re.compile(r"Unknown Job|has finished|Unknown option", re.IGNORECASE)  # Slurm's qstat has no -x
    refusals = (
        Refusal("unknown queue", "there is no such queue", "The queues", _QUEUES),
        Refusal("invalid partition", "there is no such queue", "The queues", _QUEUES),
        Refusal("unauthorized", "you may not submit there: choose another --queue or --account"),
        Refusal("not enabled", "the queue takes no jobs now: choose another --queue", "The queues", _QUEUES),
        Refusal("invalid account", "the account is not known, or you may not use it"),
        Refusal("violates queue", "the queue allows less: lower --nodes, --time or --cpus", "The queues", _QUEUES),
        Refusal("more processors", "the nodes have fewer cores: lower --nodes, --cpus or --ranks-per-node"),
        Refusal("unknown resource", "this PBS does not know a resource that is asked for"),
        Refusal("illegal attribute", "PBS does not take an option of the job"),
        Refusal("dependency", "a job that the new one is to wait for is not there"),
        Refusal("cannot connect", "the server of PBS does not answer: try again in a few minutes"),
    )

    def list_options(self, options: Queued, folder: str) -> list[str]:
        gpus_text = f":ngpus={options.gpus_per_node}" if options.gpus_per_node else ""
        return [
            f"-N {options.plain_name}",
            f"-l select={options.nodes}:ncpus={options.node_cores}:mpiprocs={options.ranks_per_node}{gpus_text}",
            # scatter: each of the `select` chunks on a node of its own. exclhost, without --cpus: whole nodes.
            f"-l place=scatter{'' if options.cpus else ':exclhost'}",
            f"-l walltime={format_duration(parse_time(options.time))}" if options.time else "",
            f"-A {options.account}" if options.account else "",
            f"-q {options.queue}" if options.queue else "",
            f"-o {folder}/{OWN_OUTPUT}",
            "-j oe",  # one file for output and errors
            "-r y",  # PBS may restart the job
            "-V",  # the environment of the submission
            "-S /bin/bash",  # PBS runs the script by the user's login shell, whatever its first line says
            *options.option,
        ]

    def read_state(self, text: str) -> State | None:
        text = re.sub(r"\n\t(?!\w+ = )", "", text)  # a long value continues on the next line
        fields = {name.lower(): value for name, value in re.findall(r"^\s+([\w.]+) = (.*)$", text, re.MULTILINE)}
        if "job_state" not in fields:
            return None
        hosts = sorted({slot.partition("/")[0] for slot in fields.get("exec_host", "").split("+") if slot})
        exit_code = _convert_exit_status(int(fields["exit_status"])) if fields.get("exit_status") else None
        return self.make_state(fields["job_state"], ", ".join(hosts), fields.get("comment", ""), exit_code)


def _convert_exit_status(status: int) -> int:
    """A shell's exit code for an exit status of PBS."""
    if status < 0:  # the job could not run
        return 1
    if status >= 256:  # the job was ended by the signal `status % 128`
        return 128 + status % 128
    return status
