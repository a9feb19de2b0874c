"""Jobs under Kubernetes: an MPIJob of the MPI operator as text, and how it is submitted, followed and cancelled."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matex_tf.deploy import following, kubernetes_words, yaml_text
from matex_tf.deploy.job import ENDED, FORGOTTEN, RUNNING, WAITING, Job, JobError, State, UnreachableError, ask
from matex_tf.deploy.kubernetes_logs import Logs
from matex_tf.deploy.options import Options, seconds

HOSTFILE = "/etc/mpi/hostfile"  # the operator's
GRACE = 120  # seconds for the ranks to keep their state, once Kubernetes asks the launcher to end
GET = "Install it (https://kubernetes.io/docs/tasks/tools) and let it reach the cluster: `kubectl get nodes`"
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST = 40  # of a job's name: pods have longer ones made of it, of 63 letters at most


@dataclass(frozen=True)
class Kubernetes(Options):
    """What a job takes of Kubernetes. `claim` is the PersistentVolumeClaim that all pods see as `folder`."""

    image: str = ""
    cpus: str = ""
    memory: str = ""
    namespace: str = ""
    claim: str = ""
    folder: str = "/runs"
    env: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.folder.startswith("/"):
            raise ValueError(f"expected folder to begin with /; given {self.folder!r}")
        for text in self.env:
            if not re.match(r"[A-Za-z_]\w*=", text):
                raise ValueError(f"expected env to be NAME=VALUE; given {text!r}")


def text(asked: Kubernetes, target: Sequence[str], name: str) -> str:
    """The MPIJob. `name` is what Kubernetes calls it."""
    script = _SCRIPT.format(
        setup="".join(f"{line}\n" for line in asked.setup),
        ended=f"{asked.folder}/{name}.ended" if asked.claim else "",
        again=os.EX_TEMPFAIL,
    )
    command = asked.command(target, ["--hostfile", HOSTFILE])
    variables = dict(one.split("=", 1) for one in asked.env)
    if asked.claim and asked.ranks > 1:
        variables["MATEX_STATE"] = f"{asked.folder}/{name}.state"
    launcher: dict[str, Any] = {"command": [_typed(word) for word in ["bash", "-c", script, "matex", *command]]}
    if variables:
        launcher["env"] = [{"name": each, "value": _typed(value)} for each, value in variables.items()]
    amounts = {"cpu": asked.cpus, "memory": asked.memory, "nvidia.com/gpu": str(asked.gpus_per_node or "")}
    limits = {each: amount for each, amount in amounts.items() if amount}
    policy: dict[str, Any] = {
        "cleanPodPolicy": "Running",
        # Without a volume there is no state from which another launcher could go on.
        "backoffLimit": asked.restarts if asked.claim else 0,
    }
    if asked.time:
        policy["activeDeadlineSeconds"] = seconds(asked.time)
    metadata: dict[str, Any] = {"name": name, "annotations": {"matex-tf/name": asked.name}}
    if asked.namespace:
        metadata["namespace"] = asked.namespace
    return yaml_text.dump(
        {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": metadata,
            "spec": {
                "slotsPerWorker": asked.ranks_per_node,
                "launcherCreationPolicy": "WaitForWorkersReady",
                "runPolicy": policy,
                "mpiReplicaSpecs": {
                    "Launcher": _replicas(asked, 1, "launcher", launcher),
                    "Worker": _replicas(
                        asked, asked.nodes, "worker", {"resources": {"limits": limits}} if limits else {}
                    ),
                },
            },
        }
    )


def _replicas(asked: Kubernetes, count: int, role: str, more: dict[str, Any]) -> dict[str, Any]:
    """Pods of one role, each of one container."""
    container = {"name": role, "image": asked.image, **more}
    pod: dict[str, Any] = {"terminationGracePeriodSeconds": GRACE, "containers": [container]}
    if asked.claim:
        container["volumeMounts"] = [{"name": "runs", "mountPath": asked.folder}]
        pod["volumes"] = [{"name": "runs", "persistentVolumeClaim": {"claimName": asked.claim}}]
    # A sidecar of Istio would outlive the launcher, and keep the pod from its end.
    template = {"metadata": {"annotations": {"sidecar.istio.io/inject": "false"}}, "spec": pod}
    return {"replicas": count, "restartPolicy": "OnFailure", "template": template}


def _typed(word: str) -> str:
    """A word of a container's command, which Kubernetes gives the container as it was."""
    return word.replace("$", "$$")


# Kubernetes starts a launcher again whatever it ended with. One that has ended by itself ends with the same code.
_SCRIPT = """\
child= ended={ended}
trap 'kill -TERM $child' TERM
[ ! -e "$ended" ] || exit $(cat "$ended")
{setup}"$@" & child=$!
wait $child; code=$?
while kill -0 $child 2> /dev/null; do wait $child; code=$?; done
[ $code -eq {again} ] || [ -z "$ended" ] || echo $code > "$ended"
exit $code
"""


def make_name(name: str) -> str:
    """A name for a job that no other has, of the letters that Kubernetes takes."""
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_LONGEST].strip("-")
    stem = stem if stem[:1].isalpha() else f"run-{stem}".strip("-")
    return f"{stem}-{''.join(secrets.choice(_LETTERS) for _ in range(5))}"


def is_name(name: str) -> bool:
    """Whether Kubernetes may have a job of this name. It begins with a letter, where jobs of Slurm have numbers."""
    return re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name) is not None


def submit(asked: Kubernetes, target: Sequence[str]) -> Job:
    """The job, which Kubernetes has accepted.

    Raises:
        JobError: Kubernetes refused it; nothing of it is left there.
    """
    job = Job(make_name(asked.name), namespace=asked.namespace)
    try:
        answer = _kubectl(job, "create", "-f", "-", given=text(asked, target, job.id))
        if answer.returncode:
            raise JobError(kubernetes_words.refusal(answer.stderr))
    except BaseException:
        # What was interrupted, or had no answer in time, may have been created all the same.
        _withdraw(job)
        raise
    return job


def _withdraw(job: Job) -> None:
    try:
        _kubectl(job, "delete", "mpijobs.kubeflow.org", job.id, "--ignore-not-found", "--wait=false")
    except UnreachableError:
        following.say(f"Nobody answers whether {job.id} was created: look with `kubectl get mpijobs`")
    except JobError:
        pass  # without kubectl nothing was created either


def _kubectl(job: Job, *words: str, given: str | None = None) -> Any:
    namespace = [f"--namespace={job.namespace}"] if job.namespace else []
    return ask(["kubectl", *namespace, *words], GET, given)


def _get(job: Job, *words: str) -> dict[str, Any] | None:
    """What Kubernetes has; None if nothing. Raises UnreachableError."""
    answer = _kubectl(job, "get", *words, "--ignore-not-found", "-o", "json")
    if answer.returncode:
        raise UnreachableError(f"kubectl: {kubernetes_words.words(answer.stderr)}")
    found: dict[str, Any] | None = json.loads(answer.stdout) if answer.stdout.strip() else None
    return found


def _pods(job: Job) -> list[dict[str, Any]]:
    """The job's pods, the oldest first."""
    found = _get(job, "pods", "-l", f"training.kubeflow.org/job-name={job.id}") or {"items": []}
    return sorted(found["items"], key=lambda pod: pod["metadata"].get("creationTimestamp", ""))


def _launchers(pods: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    role = "training.kubeflow.org/job-role"
    return [pod for pod in pods if pod["metadata"].get("labels", {}).get(role) == "launcher"]


def state(job: Job) -> State:
    """Where the job is.

    Raises:
        UnreachableError: Kubernetes does not answer now.
    """
    found = _get(job, "mpijobs.kubeflow.org", job.id)
    if found is None:
        return State(FORGOTTEN, "is not known to Kubernetes any more; how it ended is not known")
    return read_state(found, _pods(job))


def read_state(found: dict[str, Any], pods: Sequence[dict[str, Any]]) -> State:
    """What an MPIJob and its pods say."""
    conditions = {
        each["type"]: each for each in found.get("status", {}).get("conditions", []) if each["status"] == "True"
    }
    launchers = _launchers(pods)
    containers = [each for pod in launchers for each in pod.get("status", {}).get("containerStatuses", [])]
    again = max(len(launchers) - 1, 0) + sum(each.get("restartCount", 0) for each in containers)
    if "Succeeded" in conditions:
        return State(ENDED, "Succeeded", again, 0)
    if failed := conditions.get("Failed"):
        code = next((code for each in reversed(containers) if (code := _exit_code(each))), None)
        why = ": ".join(part for part in (failed.get("reason"), failed.get("message")) if part)
        return State(ENDED, f"Failed ({why})", again, code, kubernetes_words.exit_meaning(code))
    if stuck := kubernetes_words.waiting(pods):
        return State(WAITING, f"waits ({stuck[0]})", again, means=stuck[1])
    if "Running" in conditions:
        nodes = sorted({node for pod in pods if (node := pod.get("spec", {}).get("nodeName"))})
        return State(RUNNING, f"Running on {', '.join(nodes)}" if nodes else "Running", again)
    return State(WAITING, "Suspended" if "Suspended" in conditions else "Created" if conditions else "accepted", again)


def _exit_code(container: dict[str, Any]) -> int | None:
    for when in ("state", "lastState"):
        ended = container.get(when, {}).get("terminated")
        if ended and ended.get("exitCode"):
            return int(ended["exitCode"])
    return None


def follow(job: Job, write: Callable[[bytes], object] | None = None) -> int:
    """Copy what the launcher prints until the job ends; its exit code."""
    with Logs(job.namespace) as logs:

        def look() -> State:
            found = _get(job, "mpijobs.kubeflow.org", job.id)
            if found is None:
                return state(job)
            pods = _pods(job)
            for pod in _launchers(pods)[-1:]:
                logs.see(pod)
            now = read_state(found, pods)
            logs.last = now.phase in (ENDED, FORGOTTEN)
            return now

        return following.follow(job, look, logs.more, write)


def cancel(job: Job) -> None:
    """End the job and remove it. Raises JobError, also where it has ended already."""
    if (now := state(job)).phase in (ENDED, FORGOTTEN):
        raise JobError(f"{job.id} {now}: there is nothing to cancel")
    answer = _kubectl(job, "delete", "mpijobs.kubeflow.org", job.id, "--wait=false")
    if answer.returncode:
        raise JobError(f"kubectl: {kubernetes_words.words(answer.stderr)}")


def sent(job: Job, asked: Kubernetes) -> str:
    """What was submitted, in a line."""
    where = f" in namespace {job.namespace}" if job.namespace else ""
    kept = "" if asked.claim else "; without --claim nothing is kept for another start"
    return f"MPIJob {job.id}{where}: a launcher and {asked.nodes} workers, {asked.ranks} ranks{kept}"
