"""Jobs under Kubernetes: an MPIJob of the MPI operator as text, and how it is submitted, followed and cancelled."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matex_tf.deploy import following, run_folder
from matex_tf.deploy.job import (
    ENDED,
    FORGOTTEN,
    Job,
    JobError,
    State,
    UnreachableError,
    format_count,
    run_scheduler,
)
from matex_tf.deploy.kubectl import launcher_script, names, states, yaml_text
from matex_tf.deploy.kubectl import messages as kubectl_words
from matex_tf.deploy.kubectl.logs import Logs
from matex_tf.deploy.options import NAME, OF_FOLDER, Options, check_variables, parse_time

HOSTFILE = "/etc/mpi/hostfile"  # the operator's
GRACE = 120  # seconds for the ranks to keep their state, once Kubernetes asks the launcher to end
GET = "Install it (https://kubernetes.io/docs/tasks/tools) and let it reach the cluster: `kubectl get nodes`"
_OF_HOSTS = {"--hostfile", "-hostfile", "--machinefile", "-machinefile", "--host", "-host", "-H"}
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")  # of what there is in the cluster
_AMOUNT = re.compile(r"(?=.*[1-9])\d+(\.\d+)?([KMGTPE]i|[mkMGTPE])?")


@dataclass(frozen=True, kw_only=True)
class Kubernetes(Options):
    """What a job takes of Kubernetes. `claim` is the PersistentVolumeClaim that all pods see as `folder`."""

    image: str = ""
    memory: str = ""
    namespace: str = ""
    claim: str = ""
    folder: str = "/runs"
    env: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.folder.startswith("/"):
            raise ValueError(f"expected folder to begin with /; given {self.folder!r}")
        if ":" in self.folder:
            raise ValueError(f"expected folder to have no colon, as Kubernetes wants it; given {self.folder!r}")
        for name in ("namespace", "claim"):
            if (value := getattr(self, name)) and not _NAME.fullmatch(value):
                raise ValueError(f"expected {name} to be small letters, digits, - and .; given {value!r}")
        for name, example in (("cpus", "8 or 500m"), ("memory", "32Gi or 32G")):
            if (value := getattr(self, name)) and not _AMOUNT.fullmatch(value):
                raise ValueError(f"expected {name} to be as {example}; given {value!r}")
        for text in self.env:
            if not NAME.fullmatch(text.partition("=")[0]) or "=" not in text:
                raise ValueError(f"expected env to be NAME=VALUE; given {text!r}")
        if found := _OF_HOSTS & {word.partition("=")[0] for text in self.run for word in shlex.split(text)}:
            raise ValueError(f"run takes no {min(found)}: the hosts are the workers of the job")
        if self.claim:
            check_variables(text.partition("=")[0] for text in self.env)

    def add_variables(self, variables: Mapping[str, str]) -> Kubernetes:
        """The same, with these variables of the run."""
        return replace(self, env=(*self.env, *(f"{name}={value}" for name, value in variables.items())))

    def name_folder(self, name: str) -> str:
        """Where pods see the folder of the run `name`; "" without a volume."""
        return f"{self.folder.rstrip('/')}/{name}" if self.claim else ""


def format_job(asked: Kubernetes, target: Sequence[str], name: str) -> str:
    """The MPIJob. `name` is what Kubernetes calls it."""
    folder, note = asked.name_folder(name), run_folder.format_note("kubernetes", name, asked.namespace).strip()
    script = launcher_script.format_script(
        asked.make_command(target, ["--hostfile", HOSTFILE]), asked.setup, folder, note
    )
    variables = dict(one.split("=", 1) for one in asked.env)
    if asked.claim:
        variables |= dict(zip(OF_FOLDER, (f"{folder}/state", folder)))
    # The words stand in the script, and an empty value is left out: a server of 1.20 refuses empty texts.
    launcher: dict[str, Any] = {"command": ["bash", "-c", _escape_word(script)]}
    if variables:
        launcher["env"] = [
            {"name": each, **({"value": _escape_word(value)} if value else {})} for each, value in variables.items()
        ]
    amounts = {"cpu": asked.cpus, "memory": asked.memory, "nvidia.com/gpu": str(asked.gpus_per_node or "")}
    limits = {each: amount for each, amount in amounts.items() if amount}
    policy: dict[str, Any] = {
        "cleanPodPolicy": "Running",
        # Without a volume there is no state from which another launcher could go on.
        "backoffLimit": asked.restarts if asked.claim else 0,
    }
    if asked.time:
        policy["activeDeadlineSeconds"] = parse_time(asked.time)
    metadata: dict[str, Any] = {"name": name, "annotations": {"matex-tf/name": asked.name}}
    if asked.namespace:
        metadata["namespace"] = asked.namespace
    return yaml_text.dump_yaml(
        {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": metadata,
            "spec": {
                "slotsPerWorker": asked.ranks_per_node,
                "launcherCreationPolicy": "WaitForWorkersReady",
                "runPolicy": policy,
                "mpiReplicaSpecs": {
                    "Launcher": _make_replicas(asked, 1, "launcher", launcher),
                    "Worker": _make_replicas(
                        asked, asked.nodes, "worker", {"resources": {"limits": limits}} if limits else {}
                    ),
                },
            },
        }
    )


def _make_replicas(asked: Kubernetes, count: int, role: str, more: dict[str, Any]) -> dict[str, Any]:
    """Pods of one role, each of one container."""
    container = {"name": role, "image": asked.image, **more}
    pod: dict[str, Any] = {"terminationGracePeriodSeconds": GRACE, "containers": [container]}
    if asked.claim:
        container["volumeMounts"] = [{"name": "runs", "mountPath": asked.folder}]
        pod["volumes"] = [{"name": "runs", "persistentVolumeClaim": {"claimName": asked.claim}}]
    # A sidecar of Istio would outlive the launcher, and keep the pod from its end.
    template = {"metadata": {"annotations": {"sidecar.istio.io/inject": "false"}}, "spec": pod}
    return {"replicas": count, "restartPolicy": _AGAIN[role], "template": template}


# Another pod follows a launcher that fails, `backoffLimit` times at most; its exit code and output stay. OnFailure
# begins its container anew even at 0, and removes the pod at the limit. A worker is back where `--restarts` looks.
_AGAIN = {"launcher": "Never", "worker": "OnFailure"}


def _escape_word(word: str) -> str:
    """A word of a container's command, which Kubernetes gives the container as it was."""
    return word.replace("$", "$$")


def submit_job(asked: Kubernetes, target: Sequence[str]) -> Job:
    """The job, which Kubernetes has accepted.

    Raises:
        JobError: Kubernetes refused it; nothing of it is left there.
    """
    job = Job(name := names.make_name(asked.name), asked.name_folder(name), asked.namespace)
    try:
        answer = _run_kubectl(job, "create", "-f", "-", given=format_job(asked, target, job.id))
        if answer.returncode:
            raise JobError(kubectl_words.explain_refusal(answer.stderr))
    except BaseException:
        # What was interrupted, or had no answer in time, may have been created all the same.
        _withdraw_job(job)
        raise
    return job


def _withdraw_job(job: Job) -> None:
    try:
        _run_kubectl(job, "delete", "mpijobs.kubeflow.org", job.id, "--ignore-not-found", "--wait=false")
    except UnreachableError:
        following.print_line(f"Nobody answers whether {job.id} was created: look with `kubectl get mpijobs`")
    except JobError:
        pass  # without kubectl nothing was created either


def _run_kubectl(job: Job, *words: str, given: str | None = None) -> Any:
    namespace = [f"--namespace={job.namespace}"] if job.namespace else []
    return run_scheduler(["kubectl", *namespace, *words], GET, given)


def _get_object(job: Job, *words: str) -> dict[str, Any] | None:
    """What Kubernetes has; None if nothing. Raises JobError; of what may be otherwise later, UnreachableError."""
    answer = _run_kubectl(job, "get", *words, "--ignore-not-found", "-o", "json")
    if answer.returncode:
        kind = JobError if kubectl_words.is_refusal(answer.stderr) else UnreachableError
        raise kind(kubectl_words.explain_refusal(answer.stderr))
    found: dict[str, Any] | None = json.loads(answer.stdout) if answer.stdout.strip() else None
    return found


def _list_pods(job: Job) -> list[dict[str, Any]]:
    """The job's pods, the oldest first."""
    found = _get_object(job, "pods", "-l", f"training.kubeflow.org/job-name={job.id}") or {"items": []}
    return sorted(found["items"], key=lambda pod: pod["metadata"].get("creationTimestamp", ""))


def find_state(job: Job) -> State:
    """Where the job is.

    Raises:
        JobError: Kubernetes does not let this user look; UnreachableError: it does not answer now.
    """
    return _read_job(job)[0]


def _read_job(job: Job) -> tuple[State, list[dict[str, Any]], list[str]]:
    """Where the job is, its pods, and what would start more of them though its run is over."""
    found = _get_object(job, "mpijobs.kubeflow.org", job.id)
    if found is None:
        return State(FORGOTTEN, f"{_describe_unknown(job)}; how it ended is not known"), [], []
    pods = _list_pods(job)
    return states.read_state(found, pods), pods, states.list_needless(found, pods)


def find_records(job: Job) -> str:
    """The folder in which the job is recorded, which this machine sees.

    Raises:
        JobError: there is no such job, nothing of it is recorded, or this machine does not see where.
    """
    found = _get_object(job, "mpijobs.kubeflow.org", job.id)
    if found is None:
        raise JobError(f"{job.id} {_describe_unknown(job)}")
    folder = states.find_variable(found, "MATEX_RECORD")
    if not folder:
        raise JobError(
            f"nothing of {job.id} is recorded: that needs a volume, `matex submit --kubernetes --claim NAME`"
        )
    if os.path.isdir(os.path.dirname(folder)):
        return folder
    running = [pod["metadata"]["name"] for pod in states.list_launchers(_list_pods(job)) if states.is_running(pod)]
    namespace = [f"--namespace={job.namespace}"] if job.namespace else []
    words = ["kubectl", *namespace, "exec", "-it", *running[-1:], "--", "matex", "top", folder]
    there = f". Within its launcher it is seen: {shlex.join(words)}" if running else ""
    raise JobError(f"{job.id} is recorded in {folder} of its volume, which this machine does not see{there}")


def _describe_unknown(job: Job) -> str:
    where = f" in namespace {job.namespace}" if job.namespace else ""
    return f"is not known to Kubernetes{where}, or no longer"


def follow_job(job: Job, write: Callable[[bytes], object] | None = None) -> int:
    """Copy what the launcher prints until the job ends; its exit code."""
    with Logs(job.namespace) as logs:

        def look_at_job() -> State:
            now, pods, needless = _read_job(job)
            for name in needless:
                _stop_launching(job, name)
            logs.follow_pods(states.list_launchers(pods))
            logs.last = now.phase in (ENDED, FORGOTTEN)
            return now

        return following.follow_job(job, look_at_job, logs.read_more, write)


def _stop_launching(job: Job, name: str) -> None:
    """Let this batch Job end with the launchers that it has: workers are kept until the last of them has ended."""
    with contextlib.suppress(UnreachableError):  # as whoever may not do it, one waits for them
        _run_kubectl(job, "patch", "jobs.batch", name, "-p", '{"spec":{"backoffLimit":0}}')


def cancel_job(job: Job) -> None:
    """End the job, which has not ended, and remove it. Raises JobError."""
    answer = _run_kubectl(job, "delete", "mpijobs.kubeflow.org", job.id, "--wait=false")
    if answer.returncode:
        raise JobError(kubectl_words.explain_refusal(answer.stderr))


def describe_job(job: Job, asked: Kubernetes) -> str:
    """What was submitted, in a line."""
    where = f" in namespace {job.namespace}" if job.namespace else ""
    kept = f"; {job.folder} on volume {asked.claim}" if asked.claim else "; without --claim nothing is kept or recorded"
    size = f"{format_count(asked.nodes, 'worker')}, {format_count(asked.ranks, 'rank')}"
    return f"MPIJob {job.id}{where}: a launcher and {size}{kept}"
