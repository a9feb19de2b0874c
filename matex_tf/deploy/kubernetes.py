"""Kubernetes jobs: the MPIJob (of the MPI operator) as YAML, and its submission, following and cancellation.

An MPIJob has worker pods, on which the ranks run, and a launcher pod, which runs `matex run`. A launcher that fails is
replaced by another one, which resumes from the state on the volume. The volume also has the folder of the run, with a
note of the job (`run_folder`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from subprocess import CompletedProcess
from typing import Any

from matex_tf.deploy import following, run_folder
from matex_tf.deploy.job import ENDED, FORGOTTEN, Job, JobError, State, UnreachableError, format_count, run_scheduler
from matex_tf.deploy.kubectl import launcher_script, names, states, yaml_text
from matex_tf.deploy.kubectl import messages as kubectl_words
from matex_tf.deploy.kubectl.logs import Logs
from matex_tf.deploy.options import FOLDER_VARIABLES, NAME, Options, check_variables, declare, parse_time

HOSTFILE = "/etc/mpi/hostfile"  # written by the MPI operator
GRACE = 120  # seconds for the ranks to save their state after Kubernetes asks the launcher to end
_ADVICE = "Install it (https://kubernetes.io/docs/tasks/tools) and let it reach the cluster: `kubectl get nodes`"
_HOST_OPTIONS = {"--hostfile", "-hostfile", "--machinefile", "-machinefile", "--host", "-host", "-H"}
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")  # the name of a Kubernetes object
_AMOUNT = r"(?=.*[1-9])\d+(\.\d+)?([KMGTPE]i|[mkMGTPE])?"


@dataclass(frozen=True, kw_only=True)
class Kubernetes(Options):
    """The options of a Kubernetes job. `claim` is the PersistentVolumeClaim that all pods mount at `folder`."""

    image: str = declare("", "Kubernetes: with matex_tf, TensorFlow, MPI, bash and sshd.", "IMAGE")
    memory: str = declare("", "Kubernetes: the memory of each worker: 32Gi.", "BYTES")
    namespace: str = declare("", "Kubernetes: the namespace.", "NAMESPACE")
    claim: str = declare("", "Kubernetes: the volume claim for state and records.", "NAME")
    folder: str = declare("/runs", "Kubernetes: the mount point of the volume; default: /runs.", "PATH")
    env: Sequence[str] = declare((), "Kubernetes: an environment variable of the run.", "NAME=VALUE")
    cpus_form = _AMOUNT, "as 8 or 500m"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.folder.startswith("/"):
            raise ValueError(f"expected folder to begin with /; given {self.folder!r}")
        if ":" in self.folder:
            raise ValueError(f"expected folder to have no colon, as Kubernetes wants it; given {self.folder!r}")
        for name in ("namespace", "claim"):
            if (value := getattr(self, name)) and not _NAME.fullmatch(value):
                raise ValueError(f"expected {name} to be small letters, digits, - and .; given {value!r}")
        if self.memory and not re.fullmatch(_AMOUNT, self.memory):
            raise ValueError(f"expected memory to be as 32Gi or 32G; given {self.memory!r}")
        for text in self.env:
            if not NAME.fullmatch(text.partition("=")[0]) or "=" not in text:
                raise ValueError(f"expected env to be NAME=VALUE; given {text!r}")
        if host_options := _HOST_OPTIONS & {word.partition("=")[0] for text in self.run for word in shlex.split(text)}:
            raise ValueError(f"run takes no {min(host_options)}: the hosts are the workers of the job")
        if self.claim:
            check_variables(text.partition("=")[0] for text in self.env)

    def add_variables(self, variables: Mapping[str, str]) -> Kubernetes:
        """A copy with additional environment variables for the run."""
        return replace(self, env=(*self.env, *(f"{name}={value}" for name, value in variables.items())))

    def name_folder(self, name: str) -> str:
        """The folder of the run `name`, as pods see it; "" without a volume."""
        return f"{self.folder.rstrip('/')}/{name}" if self.claim else ""


def format_job(options: Kubernetes, target: Sequence[str], name: str) -> str:
    """The MPIJob as YAML. `name` is its Kubernetes name."""
    folder, note = options.name_folder(name), run_folder.format_note("kubernetes", name, options.namespace).strip()
    command = options.make_command(target, ["--hostfile", HOSTFILE])
    script = launcher_script.format_script(command, options.setup, folder, note)
    variables = dict(text.split("=", 1) for text in options.env)
    if options.claim:
        variables |= dict(zip(FOLDER_VARIABLES, (f"{folder}/state", folder)))
    # The command is part of the script. An empty value is omitted, because a server of version 1.20 refuses "".
    launcher: dict[str, Any] = {"command": ["bash", "-c", _escape_word(script)]}
    if variables:
        launcher["env"] = [
            {"name": key, **({"value": _escape_word(value)} if value else {})} for key, value in variables.items()
        ]
    amounts = {"cpu": options.cpus, "memory": options.memory, "nvidia.com/gpu": str(options.gpus_per_node or "")}
    limits = {key: amount for key, amount in amounts.items() if amount}
    worker = {"resources": {"limits": limits}} if limits else {}
    policy: dict[str, Any] = {
        "cleanPodPolicy": "Running",
        # How often a failed launcher is replaced. Without a volume, a new one would have no state to resume from.
        "backoffLimit": options.restarts if options.claim else 0,
    }
    if options.time:
        policy["activeDeadlineSeconds"] = parse_time(options.time)
    metadata: dict[str, Any] = {"name": name, "annotations": {"matex-tf/name": options.name}}
    if options.namespace:
        metadata["namespace"] = options.namespace
    return yaml_text.dump_yaml(
        {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": metadata,
            "spec": {
                "slotsPerWorker": options.ranks_per_node,
                "launcherCreationPolicy": "WaitForWorkersReady",
                "runPolicy": policy,
                "mpiReplicaSpecs": {
                    "Launcher": _make_replicas(options, 1, "launcher", launcher),
                    "Worker": _make_replicas(options, options.nodes, "worker", worker),
                },
            },
        }
    )


def _make_replicas(options: Kubernetes, count: int, role: str, container_fields: dict[str, Any]) -> dict[str, Any]:
    """Pods of one role, with one container each."""
    container = {"name": role, "image": options.image, **container_fields}
    pod: dict[str, Any] = {"terminationGracePeriodSeconds": GRACE, "containers": [container]}
    if options.claim:
        container["volumeMounts"] = [{"name": "runs", "mountPath": options.folder}]
        pod["volumes"] = [{"name": "runs", "persistentVolumeClaim": {"claimName": options.claim}}]
    # An Istio sidecar would outlive the launcher and prevent the end of the pod.
    template = {"metadata": {"annotations": {"sidecar.istio.io/inject": "false"}}, "spec": pod}
    return {"replicas": count, "restartPolicy": _RESTART_POLICIES[role], "template": template}


# A failed launcher is replaced by another pod, at most `backoffLimit` times; the old pod keeps its exit code and
# output. OnFailure would restart the container even at limit 0, and remove the pod at the limit. A worker restarts in
# place, where `--restarts` expects it.
_RESTART_POLICIES = {"launcher": "Never", "worker": "OnFailure"}


def _escape_word(word: str) -> str:
    """Escape a word of a container's command, because Kubernetes expands `$(NAME)`."""
    return word.replace("$", "$$")


def submit_job(options: Kubernetes, target: Sequence[str]) -> Job:
    """Create the MPIJob. Returns once Kubernetes has accepted it.

    Raises:
        JobError: Kubernetes refused the job; no object remains.
    """
    name = names.make_name(options.name)
    job = Job(name, options.name_folder(name), options.namespace)
    try:
        answer = _run_kubectl(job, "create", "-f", "-", standard_input=format_job(options, target, job.id))
        if answer.returncode:
            raise JobError(kubectl_words.explain_refusal(answer.stderr))
    except BaseException:
        # An interrupted or unanswered request may still have created the job.
        _withdraw_job(job)
        raise
    return job


def _withdraw_job(job: Job) -> None:
    """Delete the job if it was created; if that is unknown, tell the user how to find out."""
    try:
        _run_kubectl(job, "delete", "mpijobs.kubeflow.org", job.id, "--ignore-not-found", "--wait=false")
    except UnreachableError:
        following.print_line(
            f"Kubernetes does not answer: check with `kubectl get mpijobs` whether {job.id} was created"
        )
    except JobError:
        pass  # without kubectl, no job was created


def _make_command(job: Job, *words: str) -> list[str]:
    """The kubectl command `words` in the namespace of the job."""
    return ["kubectl", *([f"--namespace={job.namespace}"] if job.namespace else []), *words]


def _run_kubectl(job: Job, *words: str, standard_input: str = "") -> CompletedProcess[str]:
    return run_scheduler(_make_command(job, *words), _ADVICE, standard_input)


def _get_object(job: Job, *words: str) -> dict[str, Any] | None:
    """Get an object; None if it does not exist. Raises JobError, UnreachableError, as `find_state`."""
    answer = _run_kubectl(job, "get", *words, "--ignore-not-found", "-o", "json")
    if answer.returncode:
        error_class = JobError if kubectl_words.is_refusal(answer.stderr) else UnreachableError
        raise error_class(kubectl_words.explain_refusal(answer.stderr))
    found: dict[str, Any] | None = json.loads(answer.stdout) if answer.stdout.strip() else None
    return found


def _list_pods(job: Job) -> list[dict[str, Any]]:
    """The pods of the job, in order of creation."""
    listed = _get_object(job, "pods", "-l", f"training.kubeflow.org/job-name={job.id}") or {"items": []}
    return sorted(listed["items"], key=lambda pod: pod["metadata"].get("creationTimestamp", ""))


def find_state(job: Job) -> State:
    """The state of the job.

    Raises:
        JobError: Kubernetes refuses the request.
        UnreachableError: the request failed, and a later one may succeed.
    """
    return _read_job(job)[0]


def _read_job(job: Job) -> tuple[State, list[dict[str, Any]], list[str]]:
    """The job's state, its pods, and the batch Jobs that would start launchers although the run is over."""
    mpijob = _get_object(job, "mpijobs.kubeflow.org", job.id)
    if mpijob is None:
        return State(FORGOTTEN, f"{_describe_unknown(job)}; its end is unknown"), [], []
    pods = _list_pods(job)
    return states.read_state(mpijob, pods), pods, states.list_needless(mpijob, pods)


def find_records(job: Job) -> str:
    """The folder with the job's records, which must be visible on this machine.

    Raises:
        JobError: the job does not exist, has no records, or this machine does not see their folder.
    """
    mpijob = _get_object(job, "mpijobs.kubeflow.org", job.id)
    if mpijob is None:
        raise JobError(f"{job.id} {_describe_unknown(job)}")
    folder = states.find_variable(mpijob, "MATEX_RECORD")
    if not folder:
        raise JobError(
            f"nothing of {job.id} is recorded: that needs a volume, `matex submit --kubernetes --claim NAME`"
        )
    if os.path.isdir(os.path.dirname(folder)):
        return folder
    running_pods = [pod["metadata"]["name"] for pod in states.list_launchers(_list_pods(job)) if states.is_running(pod)]
    hint = ""
    if running_pods:
        command = _make_command(job, "exec", "-it", running_pods[-1], "--", "matex", "top", folder)
        hint = f". Within its launcher it is seen: {shlex.join(command)}"
    raise JobError(f"{job.id} is recorded in {folder} of its volume, which this machine does not see{hint}")


def _describe_unknown(job: Job) -> str:
    namespace_text = f" in namespace {job.namespace}" if job.namespace else ""
    return f"is not known to Kubernetes{namespace_text}, or no longer"


def follow_job(job: Job, shows_output: bool = True) -> int:
    """Copy the launchers' output until the job ends. Returns its exit code."""
    with Logs(job.namespace) as logs:

        def look_at_job() -> State:
            state, pods, needless = _read_job(job)
            for name in needless:
                _stop_launching(job, name)
            logs.follow_pods(states.list_launchers(pods))
            logs.last = state.phase in (ENDED, FORGOTTEN)
            return state

        return following.follow_job(job, look_at_job, logs.read_more, shows_output)


def _stop_launching(job: Job, name: str) -> None:
    """Stop the batch Job `name` from creating launchers. Workers are kept until its last launcher has ended."""
    with contextlib.suppress(UnreachableError):  # further launchers then start, and end at once (`launcher_script`)
        _run_kubectl(job, "patch", "jobs.batch", name, "-p", '{"spec":{"backoffLimit":0}}')


def cancel_job(job: Job) -> None:
    """End and remove a job that has not ended. Raises JobError."""
    answer = _run_kubectl(job, "delete", "mpijobs.kubeflow.org", job.id, "--wait=false")
    if answer.returncode:
        raise JobError(kubectl_words.explain_refusal(answer.stderr))


def describe_job(job: Job, options: Kubernetes) -> str:
    """A line that describes the submitted job."""
    namespace_text = f" in namespace {job.namespace}" if job.namespace else ""
    volume_text = "without --claim nothing is kept or recorded"
    if options.claim:
        volume_text = f"{job.folder} on volume {options.claim}"
    size = f"{format_count(options.nodes, 'worker')}, {format_count(options.ranks, 'rank')}"
    return f"MPIJob {job.id}{namespace_text}: a launcher and {size}; {volume_text}"
