"""Texts of Slurm's commands: the state of a job, and the meaning of refusals and of reasons for waiting."""

from __future__ import annotations

import re
import time
from datetime import datetime

from matex_tf.deploy.job import ENDED, RUNNING, STUCK, WAITING, State
from matex_tf.deploy.refusals import Refusal

# The states of a job that has ended.
ENDS = {
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED",
    "REVOKED",
}  # fmt: skip
_UNSET = "Could not establish a configuration source"
NO_CLUSTER = "this machine has Slurm's commands, but belongs to no cluster: submit from a login node of yours"


def _list_partitions(columns: str) -> tuple[str, ...]:
    """The command that prints these columns of each partition, in the notation of sinfo."""
    return ("sinfo", "--noheader", f"--format={columns}")


LIMITS = _list_partitions("%R %D %c %l")
_ASSOCIATIONS = ("sacctmgr", "-n", "-P", "show", "associations", "where", "user=$USER", "format=account,partition")
# A part of Slurm's message, its meaning, and what a command lists for the user. The first one that fits is shown.
REFUSALS = (
    Refusal("invalid partition", "there is no such partition", "The partitions", _list_partitions("%R")),
    Refusal("Invalid account", "the account is not known, or you may not use it on this partition",
            "Your accounts and their partitions", _ASSOCIATIONS),
    Refusal("partition not available", "the partition takes no jobs now: choose another --partition, or wait",
            "Partitions and their states", _list_partitions("%R %a")),
    Refusal("group not permitted", "you may not use the partition: choose another --partition"),
    Refusal("Requested time limit", "--time is missing, or longer than the partition allows",
            "Partitions and their limits", _list_partitions("%R %l")),
    Refusal("CPU count", "no node of the partition has cores for so many ranks: lower --cpus or --ranks-per-node",
            "Partitions, their nodes and the cores of each", _list_partitions("%R %D %c")),
    Refusal("Memory specification",
            "no node of the partition has so much memory: lower what --sbatch=--mem... asks for",
            "Partitions, their nodes and the MB of each", _list_partitions("%R %D %m")),
    Refusal("node configuration is not available",
            "no node of the partition has what the job asks for: lower --cpus, --ranks-per-node or --gpus-per-node",
            "Partitions, nodes, cores and GPUs", _list_partitions("%R %D %c %G")),
    Refusal("invalid number of nodes", "--nodes and the nodes that options of --sbatch name are not as many"),
    Refusal("Node count specification","the partition does not have or allow so many nodes: lower --nodes",
            "Partitions and their nodes", _list_partitions("%R %D")),
    Refusal("More processors requested",
            "the nodes of the partition have fewer cores in all: lower --nodes, --cpus or --ranks-per-node",
            "Partitions, their nodes and the cores of each", _list_partitions("%R %D %c")),
    Refusal("generic resource",
            "no node of the cluster has such GPUs: lower --gpus-per-node, or say --gres=gpu:TYPE:COUNT instead",
            "Partitions and the GPUs of a node", _list_partitions("%R %G")),
    Refusal("Invalid feature", "no node has what --constraint names",
            "Partitions and what their nodes have", _list_partitions("%R %f")),
    Refusal("reservation is invalid", "there is no such reservation: `scontrol show reservation` lists them"),
    Refusal("dependency problem", "a job that --dependency names is not there, or no longer"),
    Refusal("Invalid job array", "the cluster does not take such tasks: `scontrol show config` has its MaxArraySize"),
    Refusal("Invalid qos", "the quality of service is not known, or you may not use it"),
    Refusal("Requested partition configuration", "the partition does not allow what the job asks for"),
    Refusal("violates accounting/QOS policy", "a limit of your account is reached: ask for less, or wait"),
    Refusal(_UNSET, NO_CLUSTER),
    Refusal("Unable to contact", "Slurm's controller does not answer: try again in a few minutes"),
    Refusal("timed out", "Slurm's controller is too busy: try again in a few minutes"),
    Refusal("unrecognized option", "this Slurm's sbatch does not know an option of --sbatch"),
    Refusal("denied", "you may not submit there: ask the people who run the cluster"),
)  # fmt: skip
# Explanations of the reasons for which a job waits.
_REASONS = {
    "BeginTime": "Slurm lets some time pass before it starts a job again",
    "Priority": "others come first",
    "Resources": "not enough nodes are free; where nothing says how much of a node is needed, whole ones are",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "ReqNodeNotAvail": "nodes that it needs are down or reserved",
    "Nodes_required_for_job_are_DOWN": "nodes that it needs are down or reserved",
    "Dependency": "the jobs of --dependency have not ended",
    "JobHeldAdmin": "held by an administrator of the cluster",
    "JobHeldUser": "held; `scontrol release` lets it go",
}
# Reasons that persist. The first entry that a reason begins or ends with explains it.
_PERSISTENT_REASONS = {
    "PartitionNodeLimit": "the partition allows fewer nodes than --nodes, or more",
    "PartitionTimeLimit": "the partition allows less than --time",
    "PartitionConfig": "the partition lacks so many nodes or cores, or does not allow them, or not for so long",
    "BadConstraints": "no node has what it asks for",
    "DependencyNeverSatisfied": "a job of --dependency ended otherwise",
    "ReservationDeleted": "the reservation is gone",
    "InvalidAccount": "the account may not be used",
    "Job's_account_not": "the account may not use the partition",
    "InvalidQOS": "the quality of service may not be used",
    "QOSNotAllowed": "the quality of service may not be used there",
    "Job's_QOS_not": "the quality of service may not use the partition",
    "QOSTimeLimit": "the quality of service allows less than --time",
    "QOSMin": "the quality of service is for larger jobs",
    "PerJob": "a job of your account or quality of service may not ask for so much",
    "PerJobLimit": "a job of your account or quality of service may not ask for so much",
    "PerNode": "a job of your account or quality of service may not ask for so much of a node",
    "MaxMemPerLimit": "the cluster allows less memory",
}


def strip_prefixes(text: str) -> str:
    """Slurm's message without the prefixes of its programs."""
    lines = (re.sub(r"^\w+: (error|fatal): ", "", line).strip() for line in text.splitlines())
    return "; ".join(line for line in lines if line)


def is_without_cluster(text: str) -> bool:
    """Whether a Slurm command found no cluster."""
    return _UNSET in text


def explain_wait(reason: str, may_start: bool) -> tuple[str, bool]:
    """The meaning of Slurm's reason for waiting ("" if unknown or self-explanatory), and whether the reason passes.

    `may_start`: there is other evidence that the job can start.
    """
    name = reason.partition(",")[0]
    for sign, meaning in _PERSISTENT_REASONS.items():
        if name.startswith(sign) or name.endswith(sign):
            return (meaning, True) if may_start else (f"{meaning}; it will not start", False)
    if name.startswith(("Assoc", "QOS")):
        return "a limit of your account or quality of service is reached", True
    return _REASONS.get(name, ""), True


def read_state(text: str) -> State | None:
    """The state of a job from the output of `scontrol show job`; None if the output describes no job."""
    state_name = _parse_field(text, "JobState")
    if not state_name:
        return None
    reason, nodes, code = (_parse_field(text, name) for name in ("Reason", "NodeList", "ExitCode"))
    restarts = int(_parse_field(text, "Restarts") or 0)
    submitted_at = parse_moment(text, "SubmitTime")
    if state_name in ENDS:
        ended_at = parse_moment(text, "EndTime")
        exit_code, seconds = parse_exit_code(state_name, code), None
        # After a restart the time of submission is unknown: SubmitTime is then the time at which the job was requeued.
        if ended_at is not None and submitted_at is not None and not restarts:
            seconds = ended_at - submitted_at
        return State(ENDED, state_name, restarts, exit_code, seconds=seconds, starts_noun="allocations")
    if nodes in ("", "(null)"):  # the job waits
        reason_text = f" ({reason})" if reason not in ("", "None") else ""
        waited_seconds = time.time() - submitted_at if submitted_at is not None else None
        # Whatever reason Slurm gives, the job can start: it has already run, or may start in another of its partitions.
        may_start = restarts > 0 or "," in _parse_field(text, "Partition")
        meaning, is_passing = explain_wait(reason, may_start)
        phase = WAITING if is_passing else STUCK
        return State(phase, f"{state_name}{reason_text}", restarts, meaning=meaning, seconds=waited_seconds)
    return State(RUNNING, f"{state_name} on {nodes}", restarts)


def read_ends(text: str) -> list[State]:
    """The states of a job, or of an array's tasks, from lines `state|exit code` of sacct; [] if one has not ended."""
    states = []
    for line in text.splitlines():
        state_words, _, code = line.partition("|")
        name = state_words.partition(" ")[0]  # "CANCELLED by 1000"
        if name not in ENDS:
            return []
        states.append(State(ENDED, state_words, code=parse_exit_code(name, code)))
    return states


def read_states(text: str) -> dict[str, State]:
    """The states of an array's tasks from the output of `scontrol show job`, keyed by task numbers."""
    states = {}
    for record in re.split(r"\n\s*\n", text):
        # ArrayTaskId is on the first line of a record. `_parse_field` reads only lines with leading blanks, which all
        # lines but the first have.
        number, state = _parse_field("   " + record, "ArrayTaskId"), read_state(record)
        if number and state:
            states[number] = state
    return states


def parse_moment(text: str, name: str) -> float | None:
    """A time in the output of `scontrol show job`, in seconds since 1970."""
    try:
        return datetime.fromisoformat(_parse_field(text, name)).timestamp()
    except ValueError:
        return None  # the time is unset, or has another format


def _parse_field(text: str, name: str) -> str:
    """The value of a field of `scontrol show job`; "" if it is missing.

    Fields with the user's text, which could imitate other fields, come after all fields that are read here.
    """
    match = re.search(rf"^ +(?:\S+=\S* )*?{name}=(\S*)", text, re.MULTILINE)
    return match.group(1) if match else ""


def parse_exit_code(name: str, codes: str) -> int | None:
    """The exit code of a job from Slurm's `code:signal`; 0 only if the job is COMPLETED."""
    code_text, _, signal_text = codes.partition(":")
    if name == "COMPLETED":
        return 0
    if code_text.isdigit() and int(code_text):
        return int(code_text)
    # Slurm uses numbers above 64 for jobs that ran out of memory.
    return 128 + int(signal_text) if signal_text.isdigit() and 0 < int(signal_text) <= 64 else None
