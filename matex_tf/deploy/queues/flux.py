"""Flux (flux-core): a job is a Flux instance of its own, whose initial program is the job script."""

from __future__ import annotations

import re
from dataclasses import dataclass

from matex_tf.deploy.job import ENDED, RUNNING, WAITING, State
from matex_tf.deploy.options import parse_time
from matex_tf.deploy.queues.scheduler import OWN_OUTPUT, Queued, Refusal, Scheduler, make_state

_STATES = {
    "NEW": (WAITING, "NEW"),
    "DEPEND": (WAITING, "DEPEND"),
    "PRIORITY": (WAITING, "PRIORITY"),
    "SCHED": (WAITING, "SCHED"),
    "RUN": (RUNNING, "RUNNING"),
    "CLEANUP": (RUNNING, "CLEANUP"),
    "COMPLETED": (ENDED, "COMPLETED"),
    "FAILED": (ENDED, "FAILED"),
    "CANCELED": (ENDED, "CANCELED"),
    "TIMEOUT": (ENDED, "TIMEOUT"),
}
_QUEUES = ("flux", "queue", "list", "-no", "{queue}")


@dataclass(frozen=True, kw_only=True)
class Flux(Queued):
    """The options of a Flux job. `account` is the bank."""


class FluxCore(Scheduler):
    """flux-core, version 0.58 or later. Written from its manual, not tested with Flux."""

    kind = Flux
    title = "Flux"
    head = "# flux:"
    own_number = '"$(flux getattr jobid)"'
    hosts = "flux hostlist -led'\\n'"
    again = 'flux --parent batch --dependency=afterany:"$before" {script}'
    find_number = re.compile(r"^(\S+)\s*$", re.MULTILINE)
    commands = ("flux", "flux jobs", "flux cancel")
    unknown = re.compile(r"not found|unknown job|invalid job", re.IGNORECASE)
    refusals = (
        Refusal("queue", "there is no such queue, or it takes no jobs", "The queues are", _QUEUES),
        Refusal("bank", "the bank is not known, or you may not use it: choose another --account"),
        Refusal("unsatisfiable", "no node of this instance has what the job asks for: lower --nodes or --cpus"),
        Refusal("dependency", "a job that the new one is to wait for is not there"),
        Refusal("unable to connect", "this machine belongs to no instance of Flux: submit from a login node of yours"),
    )

    def list_options(self, asked: Queued, folder: str) -> list[str]:
        # A slot is a rank. Given nodes and slots, Flux places the same number of slots on each node.
        return [
            f"--job-name={asked.plain_name}",
            f"--nodes={asked.nodes}",
            f"--nslots={asked.ranks}",
            f"--cores-per-slot={asked.cpus or 1}",
            *([f"--gpus-per-slot={-(-asked.gpus_per_node // asked.ranks_per_node)}"] if asked.gpus_per_node else []),
            *([] if asked.cpus else ["--exclusive"]),
            *([f"--time-limit={parse_time(asked.time)}s"] if asked.time else []),
            *([f"--bank={asked.account}"] if asked.account else []),
            *([f"--queue={asked.queue}"] if asked.queue else []),
            f"--output={folder}/{OWN_OUTPUT}",
            *asked.option,
        ]

    def make_submit_command(self, script: str) -> tuple[list[str], bool]:
        return ["flux", "batch", script], False

    def list_state_commands(self, number: str) -> list[list[str]]:
        return [["flux", "jobs", "-no", "{status}|{returncode}|{nodelist}|{contextual_info}", number]]

    def read_state(self, text: str) -> State | None:
        parts = text.strip().split("|", 3)
        if len(parts) < 4:
            return None
        word, code, hosts, why = (part.strip() for part in parts)
        number = int(code) if re.fullmatch(r"-?\d+", code) else None
        if number is not None and number < 0:  # a signal; -128: the job never began
            number = 128 - number if number > -128 else None
        return make_state(_STATES, word, hosts, why, number)

    def make_cancel_command(self, number: str) -> list[str]:
        return ["flux", "cancel", number]
