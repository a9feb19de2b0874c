"""Flux (flux-core): a job is a Flux instance of its own, whose initial program is the job script."""

from __future__ import annotations

import re
from dataclasses import dataclass

from matex_tf.deploy.job import ENDED, RUNNING, WAITING, State
from matex_tf.deploy.options import parse_time
from matex_tf.deploy.queues.scheduler import OWN_OUTPUT, QueueCluster, Queued
from matex_tf.deploy.refusals import Refusal

_QUEUES = ("flux", "queue", "list", "-no", "{queue}")


@dataclass(frozen=True, kw_only=True)
class Flux(Queued):
    """The options of a Flux job. `account` is the bank."""


class FluxCluster(QueueCluster):
    """flux-core, version 0.58 or later. Written from its manual, not tested with Flux."""

    kind = Flux
    option_prefix = "# flux:"
    own_number = '"$(flux getattr jobid)"'
    hosts = "flux hostlist -led'\\n'"
    # The successor, a job that goes on with the run, is submitted to the instance in which this job itself runs.
    submit_successor = 'flux --parent batch --dependency=afterany:"$before" {script}'
    number_pattern = re.compile(r"^(\S+)\s*$", re.MULTILINE)
    submit_command = ("flux", "batch")
    list_command = "flux jobs"
    state_commands = (("flux", "jobs", "-no", "{status}|{returncode}|{nodelist}|{contextual_info}"),)
    cancel_command = ("flux", "cancel")
    words = {
        WAITING: {"NEW": "NEW", "DEPEND": "DEPEND", "PRIORITY": "PRIORITY", "SCHED": "SCHED"},
        RUNNING: {"RUN": "RUNNING", "CLEANUP": "CLEANUP"},
        ENDED: {"COMPLETED": "COMPLETED", "FAILED": "FAILED", "CANCELED": "CANCELED", "TIMEOUT": "TIMEOUT"},
    }
    unknown_pattern = re.compile(r"not found|unknown job|invalid job", re.IGNORECASE)
    refusals = (
        Refusal("queue", "there is no such queue, or it takes no jobs", "The queues", _QUEUES),
        Refusal("bank", "the bank is not known, or you may not use it: choose another --account"),
        Refusal("unsatisfiable", "no node of this instance has what the job asks for: lower --nodes or --cpus"),
        Refusal("dependency", "a job that the new one is to wait for is not there"),
        Refusal("unable to connect", "this machine belongs to no instance of Flux: submit from a login node of yours"),
    )

    def list_options(self, options: Queued, folder: str) -> list[str]:
        # A slot is a rank. Given nodes and slots, Flux places the same number of slots on each node.
        gpus_per_slot = -(-options.gpus_per_node // options.ranks_per_node)  # rounded up
        return [
            f"--job-name={options.plain_name}",
            f"--nodes={options.nodes}",
            f"--nslots={options.ranks}",
            f"--cores-per-slot={options.cpus or 1}",
            f"--gpus-per-slot={gpus_per_slot}" if gpus_per_slot else "",
            "" if options.cpus else "--exclusive",  # without --cpus, a job has whole nodes
            f"--time-limit={parse_time(options.time)}s" if options.time else "",
            f"--bank={options.account}" if options.account else "",
            f"--queue={options.queue}" if options.queue else "",
            f"--output={folder}/{OWN_OUTPUT}",
            *options.option,
        ]

    def read_state(self, text: str) -> State | None:
        fields = [field.strip() for field in text.split("|", 3)]
        if len(fields) < 4:
            return None
        state_word, code_text, hosts, reason = fields
        exit_code = int(code_text) if re.fullmatch(r"-?\d+", code_text) else None
        if exit_code is not None and exit_code < 0:  # minus the number of a signal; -128: the job never began
            exit_code = 128 - exit_code if exit_code > -128 else None
        return self.make_state(state_word, hosts, reason, exit_code)
