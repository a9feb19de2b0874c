"""Kubernetes, as a `Cluster`: its command is kubectl. The folder of a run is on a volume, if the job has one."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Sequence
from subprocess import CompletedProcess
from typing import Any

from matex_tf.deploy import following
from matex_tf.deploy.cluster import Cluster
from matex_tf.deploy.job import ENDED, FORGOTTEN, Job, JobError, State, UnreachableError, format_count, run_scheduler
from matex_tf.deploy.kubectl import messages as kubectl_words
from matex_tf.deploy.kubectl import states
from matex_tf.deploy.kubectl.logs import Logs
from matex_tf.deploy.kubectl.mpijob import Kubernetes, format_job, make_name

_ADVICE = "Install it (https://kubernetes.io/docs/tasks/tools) and let it reach the cluster: `kubectl get nodes`"


class KubernetesCluster(Cluster[Kubernetes]):
    """Kubernetes with the MPI operator."""

    kind = Kubernetes
    sees_files = False

    def preview_job(self, options: Kubernetes, target: Sequence[str]) -> str:
        return format_job(options, target, make_name(options.name))

    def submit_job(self, options: Kubernetes, target: Sequence[str]) -> Job:
        name = make_name(options.name)
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

    def find_state(self, job: Job) -> State:
        return _read_job(job)[0]

    def follow_job(self, job: Job, shows_output: bool = True) -> int:
        """Copy the launchers' output until the job ends. Returns its exit code."""
        with Logs(job.namespace) as logs:

            def look_at_job() -> State:
                state, pods, needless_jobs = _read_job(job)
                for name in needless_jobs:
                    _stop_launching(job, name)
                logs.follow_pods(states.list_launchers(pods))
                logs.last = state.phase in (ENDED, FORGOTTEN)  # then `read_more` returns all of the remaining output
                return state

            return following.follow_job(job, look_at_job, logs.read_more, shows_output)

    def end_job(self, job: Job) -> None:
        answer = _run_kubectl(job, "delete", "mpijobs.kubeflow.org", job.id, "--wait=false")
        if answer.returncode:
            raise JobError(kubectl_words.explain_refusal(answer.stderr))

    def describe_job(self, job: Job, options: Kubernetes) -> str:
        namespace_text = f" in namespace {job.namespace}" if job.namespace else ""
        volume_text = "without --claim nothing is kept or recorded"
        if options.claim:
            volume_text = f"{job.folder} on volume {options.claim}"
        size_text = f"{format_count(options.nodes, 'worker')}, {format_count(options.ranks, 'rank')}"
        return f"MPIJob {job.id}{namespace_text}: a launcher and {size_text}; {volume_text}"

    def find_records(self, job: Job) -> str:
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
        running_pods = [
            pod["metadata"]["name"] for pod in states.list_launchers(_list_pods(job)) if states.is_running(pod)
        ]
        hint = ""
        if running_pods:
            command = _make_command(job, "exec", "-it", running_pods[-1], "--", "matex", "top", folder)
            hint = f". Within its launcher it is seen: {shlex.join(command)}"
        raise JobError(f"{job.id} is recorded in {folder} of its volume, which this machine does not see{hint}")


KUBERNETES = KubernetesCluster()


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


def _make_command(job: Job, *arguments: str) -> list[str]:
    """The command of kubectl with these `arguments`, in the namespace of the job."""
    return ["kubectl", *([f"--namespace={job.namespace}"] if job.namespace else []), *arguments]


def _run_kubectl(job: Job, *arguments: str, standard_input: str = "") -> CompletedProcess[str]:
    return run_scheduler(_make_command(job, *arguments), _ADVICE, standard_input)


def _get_object(job: Job, *arguments: str) -> dict[str, Any] | None:
    """Get an object; None if it does not exist. Raises JobError, UnreachableError, as `find_state`."""
    answer = _run_kubectl(job, "get", *arguments, "--ignore-not-found", "-o", "json")
    if answer.returncode:
        error_class = JobError if kubectl_words.is_refusal(answer.stderr) else UnreachableError
        raise error_class(kubectl_words.explain_refusal(answer.stderr))
    kubernetes_object: dict[str, Any] | None = json.loads(answer.stdout) if answer.stdout.strip() else None
    return kubernetes_object


def _list_pods(job: Job) -> list[dict[str, Any]]:
    """The pods of the job, in order of creation."""
    pod_list = _get_object(job, "pods", "-l", f"training.kubeflow.org/job-name={job.id}") or {"items": []}
    return sorted(pod_list["items"], key=lambda pod: pod["metadata"].get("creationTimestamp", ""))


def _read_job(job: Job) -> tuple[State, list[dict[str, Any]], list[str]]:
    """The job's state, its pods, and the names of launcher Jobs that would start launchers although the run is over."""
    mpijob = _get_object(job, "mpijobs.kubeflow.org", job.id)
    if mpijob is None:
        return State(FORGOTTEN, f"{_describe_unknown(job)}; its end is unknown"), [], []
    pods = _list_pods(job)
    return states.read_state(mpijob, pods), pods, states.list_needless(mpijob, pods)


def _describe_unknown(job: Job) -> str:
    namespace_text = f" in namespace {job.namespace}" if job.namespace else ""
    return f"is not known to Kubernetes{namespace_text}, or no longer"


def _stop_launching(job: Job, name: str) -> None:
    """Stop the launcher Job `name` from creating launchers. Workers are kept until its last launcher has ended."""
    with contextlib.suppress(UnreachableError):  # further launchers then start, and end at once (`kubectl.mpijob`)
        _run_kubectl(job, "patch", "jobs.batch", name, "-p", '{"spec":{"backoffLimit":0}}')
