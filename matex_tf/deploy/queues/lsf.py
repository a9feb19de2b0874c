"""IBM Spectrum LSF."""

from __future__ import annotations

import re
from dataclasses import dataclass

from matex_tf.deploy.job import ENDED, RUNNING, WAITING, State
from matex_tf.deploy.options import parse_time
from matex_tf.deploy.queues.scheduler import OWN_OUTPUT, Queued, Refusal, Scheduler, make_state

_STATES = {
    "PEND": (WAITING, "PENDING"),
    "PSUSP": (WAITING, "HELD"),
    "PROV": (WAITING, "PROVISIONING"),
    "WAIT": (WAITING, "WAITING"),
    "RUN": (RUNNING, "RUNNING"),
    "USUSP": (RUNNING, "SUSPENDED"),
    "SSUSP": (RUNNING, "SUSPENDED"),
    "UNKWN": (RUNNING, "UNKNOWN"),
    "DONE": (ENDED, "DONE"),
    "EXIT": (ENDED, "EXIT"),
    "ZOMBI": (ENDED, "EXIT"),
}
_QUEUES = ("bqueues", "-noheader", "-o", "queue_name")
_FIELDS = "stat exit_code exec_host pend_reason delimiter='|'"


@dataclass(frozen=True, kw_only=True)
class LSF(Queued):
    """The options of an LSF job."""


class Lsf(Scheduler):
    """LSF 10. Written from its command reference, not tested with LSF."""

    kind = LSF
    title = "LSF"
    head = "#BSUB"
    own_number = '"$LSB_JOBID"'
    hosts = 'cat "$LSB_DJOB_HOSTFILE"'
    again = """bsub -w "ended($before)" < {script} | sed -n 's/^Job <\\([0-9]*\\)>.*/\\1/p'"""
    find_number = re.compile(r"Job <(\d+)> is submitted")
    commands = ("bsub", "bjobs", "bkill")
    unknown = re.compile(r"is not found")
    refusals = (
        Refusal("no such queue", "there is no such queue", "The queues are", _QUEUES),
        Refusal("cannot use the queue", "you may not use the queue: choose another --queue"),
        Refusal("exclusive", "the queue shares its nodes: --cpus says how many cores each rank gets"),
        Refusal("closed", "the queue takes no jobs now: choose another --queue"),
        Refusal("run limit", "the queue allows less: lower --time", "The queues are", ("bqueues", "-l")),
        Refusal("processors", "the queue does not allow so many slots: lower --nodes, --cpus or --ranks-per-node"),
        Refusal("not a member of the specified", "you may not use the account"),
        Refusal("dependency condition", "a job that the new one is to wait for is not there"),
        Refusal("failed in an lsf library call", "LSF does not answer: try again in a few minutes"),
    )

    def list_options(self, asked: Queued, folder: str) -> list[str]:
        minutes = -(-parse_time(asked.time) // 60) if asked.time else 0
        return [
            f"-J {asked.plain_name}",
            f"-n {asked.nodes * asked.node_cores}",
            f'-R "span[ptile={asked.node_cores}]"',
            *([] if asked.cpus else ["-x"]),
            *([f'-gpu "num={asked.gpus_per_node}"'] if asked.gpus_per_node else []),
            *([f"-W {minutes // 60}:{minutes % 60:02}"] if minutes else []),
            *([f"-P {asked.account}"] if asked.account else []),
            *([f"-q {asked.queue}"] if asked.queue else []),
            f"-o {folder}/{OWN_OUTPUT}",
            "-r",
            *asked.option,
        ]

    def make_submit_command(self, script: str) -> tuple[list[str], bool]:
        return ["bsub"], True  # bsub reads #BSUB lines from standard input only

    def list_state_commands(self, number: str) -> list[list[str]]:
        return [["bjobs", "-noheader", "-o", _FIELDS, number]]

    def read_state(self, text: str) -> State | None:
        parts = text.strip().split("|")
        if len(parts) < 4:
            return None
        letter, code, host, why = (("" if part.strip() == "-" else part.strip()) for part in parts[:4])
        hosts = sorted({part.rpartition("*")[2] for part in host.split(":") if part})
        number = 0 if letter == "DONE" else int(code) if code.isdigit() else None
        return make_state(_STATES, letter, ", ".join(hosts), why, number)

    def make_cancel_command(self, number: str) -> list[str]:
        return ["bkill", number]
