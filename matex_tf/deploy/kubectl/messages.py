"""Messages of Kubernetes: their meaning, and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from matex_tf.deploy import refusals
from matex_tf.deploy.refusals import Refusal

_NO_MPIJOBS = "the cluster has no MPIJobs; whoever runs it installs https://github.com/kubeflow/mpi-operator"
_FORBIDDEN = "you may not do that with MPIJobs there: ask whoever runs the cluster, or choose another --namespace"
_LOGIN = "your login has run out: log in to the cluster again"
_ADDRESS = "the cluster does not answer at this address: `kubectl config view --minify` shows it"
_NO_CLUSTER = "localhost:8080"  # kubectl's default address without a configuration
# Final refusals by the cluster: a part of the message, and its meaning. The first one that fits is shown. A further
# request would fail in the same way.
_REFUSALS = (
    Refusal('no matches for kind "MPIJob"', _NO_MPIJOBS),
    Refusal("could not find the requested resource", _NO_MPIJOBS),
    Refusal("doesn't have a resource type", _NO_MPIJOBS),
    Refusal(_NO_CLUSTER, "kubectl knows no cluster here: `kubectl config get-contexts` lists those that it knows"),
    Refusal("exceeded quota", "the namespace has no room for it: lower --nodes, --cpus or --memory, or wait"),
    Refusal("forbidden", _FORBIDDEN),
    Refusal("namespaces", "there is no such namespace: `kubectl get namespaces` lists them"),
    Refusal("Unauthorized", _LOGIN),
    Refusal("provide credentials", _LOGIN),
    Refusal("is invalid", "the cluster's MPIJobs take no such value at the place that is named"),
)
# Errors of a cluster that cannot be reached. A later request may succeed.
_ABSENCES = [Refusal(sign, _ADDRESS) for sign in ("refused", "Unable to connect", "no such host", "i/o timeout")]
# Reasons for which a pod would wait for ever.
_REASONS = {
    "ErrImagePull": "the image is not there, or may not be pulled: is --image right?",
    "ImagePullBackOff": "the image is not there, or may not be pulled: is --image right?",
    "InvalidImageName": "--image is no name of an image",
    "CreateContainerConfigError": "something that the pod refers to is not there: is --claim right?",
    "RunContainerError": "the image lacks what the job runs: bash, sshd, and matex_tf with TensorFlow",
    "CrashLoopBackOff": "it ends again and again",
    "Unschedulable": "no node has what a pod asks for, or its volume is not there",
}
_LOGGED = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d")
_NO_COMMAND = (126, 127)  # exit codes of a shell that cannot run a command


def strip_prefixes(text: str) -> str:
    """kubectl's own message, without the log lines of its libraries."""
    lines = [line.removeprefix("error: ").strip() for line in text.splitlines() if line.strip()]
    return "; ".join([line for line in lines if not _LOGGED.match(line)] or lines)


def explain_refusal(text: str) -> str:
    """kubectl's message about a refused request, with its meaning."""
    return refusals.explain_refusal("kubectl", strip_prefixes(text) or "no reason", [*_REFUSALS, *_ABSENCES])


def is_without_cluster(message: str) -> bool:
    """Whether this machine has no kubectl, or kubectl has no cluster."""
    return _NO_CLUSTER in message or "no kubectl on this machine" in message


def is_refusal(text: str) -> bool:
    """Whether the cluster refused for good: a further request would fail in the same way."""
    return any(refusal.sign in text for refusal in _REFUSALS)


def explain_wait(pods: Sequence[dict[str, Any]]) -> tuple[str, str] | None:
    """The name and cause of a pod that cannot start, and the meaning; None if all pods have started or are starting."""
    for pod in pods:
        status = pod.get("status", {})
        causes = [item.get("state", {}).get("waiting") or {} for item in status.get("containerStatuses", [])]
        causes += [item for item in status.get("conditions", []) if item.get("status") == "False"]
        for cause in causes:
            if meaning := _REASONS.get(cause.get("reason", "")):
                cause_text = ": ".join(part for part in (cause["reason"], cause.get("message")) if part)
                return f"{pod['metadata']['name']}: {cause_text}", meaning
    return None


def explain_exit(code: int | None) -> str:
    """The meaning of a launcher's exit code for its image; "" if there is none."""
    return "the image has no `matex`: install matex_tf in it, or say --matex" if code in _NO_COMMAND else ""
