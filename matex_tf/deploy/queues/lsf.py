"""IBM Spectrum LSF."""

from __future__ import annotations

import re
from dataclasses import dataclass

from matex_tf.deploy.job import ENDED, RUNNING, WAITING, State
from matex_tf.deploy.options import parse_time
from matex_tf.deploy.queues.scheduler import OWN_OUTPUT, QueueCluster, Queued
from matex_tf.deploy.refusals import Refusal

_QUEUES = ("bqueues", "-noheader", "-o", "queue_name")


@dataclass(frozen=True, kw_only=True)
class LSF(Queued):
    """The options of an LSF job."""


class LsfCluster(QueueCluster):
    """LSF 10. Written from its command reference, not tested with LSF."""

    kind = LSF
    option_prefix = "#BSUB"
    own_number = '"$LSB_JOBID"'
    hosts = 'cat "$LSB_DJOB_HOSTFILE"'
    submit_successor = """bsub -w "ended($before)" < {script} | sed -n 's/^Job <\\([0-9]*\\)>.*/\\1/p'"""
    number_pattern = re.compile(r"Job <(\d+)> is submitted")
    submit_command = ("bsub",)
    reads_standard_input = True  # bsub reads #BSUB lines from standard input only
    list_command = "bjobs"
    state_commands = (("bjobs", "-noheader", "-o", "stat exit_code exec_host pend_reason delimiter='|'"),)
    cancel_command = ("bkill",)
    words = {
        WAITING: {"PEND": "PENDING", "PSUSP": "HELD", "PROV": "PROVISIONING", "WAIT": "WAITING"},
        RUNNING: {"RUN": "RUNNING", "USUSP": "SUSPENDED", "SSUSP": "SUSPENDED", "UNKWN": "UNKNOWN"},
        ENDED: {"DONE": "DONE", "EXIT": "EXIT", "ZOMBI": "EXIT"},
    }
    unknown_pattern = re.compile(r"is not found")
    refusals = (
        Refusal("no such queue", "there is no such queue", "The queues", _QUEUES),
        Refusal("cannot use the queue", "you may not use the queue: choose another --queue"),
        Refusal("exclusive", "the queue shares its nodes: --cpus says how many cores each rank gets"),
        Refusal("closed", "the queue takes no jobs now: choose another --queue"),
        Refusal("run limit", "the queue allows less: lower --time", "The queues", ("bqueues", "-l")),
        Refusal("processors", "the queue does not allow so many slots: lower --nodes, --cpus or --ranks-per-node"),
        Refusal("not a member of the specified", "you may not use the account"),
        Refusal("dependency condition", "a job that the new one is to wait for is not there"),
        Refusal("failed in an lsf library call", "LSF does not answer: try again in a few minutes"),
    )

    def list_options(self, options: Queued, folder: str) -> list[str]:
        minutes = -(-parse_time(options.time) // 60) if options.time else 0  # rounded up
        return [
            f"-J {options.plain_name}",
            f"-n {options.nodes * options.node_cores}",
            f'-R "span[ptile={options.node_cores}]"',
            "" if options.cpus else "-x",  # without --cpus: whole nodes
            f'-gpu "num={options.gpus_per_node}"' if options.gpus_per_node else "",
            f"-W {minutes // 60}:{minutes % 60:02}" if minutes else "",
            f"-P {options.account}" if options.account else "",
            f"-q {options.queue}" if options.queue else "",
            f"-o {folder}/{OWN_OUTPUT}",
            "-r",  # LSF may restart the job
            *options.option,
        ]

    def read_state(self, text: str) -> State | None:
        fields = ["" if field.strip() == "-" else field.strip() for field in text.split("|")]
        if len(fields) < 4:
            return None
        state_word, code_text, slots, reason = fields[:4]  # slots: 8*host1:8*host2
        hosts = sorted({slot.rpartition("*")[2] for slot in slots.split(":") if slot})
        exit_code = int(code_text) if code_text.isdigit() else None
        if state_word == "DONE":  # LSF gives no exit code then
            exit_code = 0
        return self.make_state(state_word, ", ".join(hosts), reason, exit_code)
