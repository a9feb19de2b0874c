"""The state of a submitted job, from its MPIJob and its pods, the dictionaries that `kubectl get -o json` prints.

The MPI operator records in the MPIJob whether it runs or has ended. It starts the launcher through a Job of Kubernetes
itself, the launcher Job. The launcher Job replaces a failed launcher pod, even if the run is over. The first launcher
whose run is over says so in its termination message (`mpijob.OVER`), and later launchers only repeat its exit code.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from matex_tf.deploy.job import ENDED, RUNNING, WAITING, State
from matex_tf.deploy.kubectl import messages
from matex_tf.deploy.kubectl.mpijob import OVER


def list_launchers(pods: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    role = "training.kubeflow.org/job-role"
    return [pod for pod in pods if pod["metadata"].get("labels", {}).get(role) == "launcher"]


def find_variable(mpijob: dict[str, Any], name: str) -> str:
    """The value of an environment variable of an MPIJob's launcher; "" if it is not set."""
    launcher = mpijob["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    return next((variable.get("value", "") for variable in launcher.get("env", []) if variable["name"] == name), "")


def is_running(pod: dict[str, Any]) -> bool:
    """Whether a container of the pod runs."""
    return any("running" in container.get("state", {}) for container in _list_containers([pod]))


def list_needless(mpijob: dict[str, Any], pods: Sequence[dict[str, Any]]) -> list[str]:
    """The names of the launcher Jobs that are no longer needed: they would start launchers although the run is over."""
    launchers = list_launchers(pods)
    has_ended = "completionTime" in mpijob.get("status", {})  # the operator has ended the MPIJob
    if has_ended or _find_final_failure(launchers) is None:
        return []
    owners = [owner for pod in launchers for owner in pod["metadata"].get("ownerReferences", [])]
    return sorted({owner["name"] for owner in owners if owner["kind"] == "Job"})


class _FinalFailure(NamedTuple):
    """The failure after which no further launcher should start."""

    launcher_index: int
    container_end: dict[str, Any]  # the "terminated" state of the launcher's container


def _find_final_failure(launchers: Sequence[dict[str, Any]]) -> _FinalFailure | None:
    """The first failed launcher whose termination message says that the run is over; None if there is none."""
    for index, pod in enumerate(launchers):
        for container in _list_containers([pod]):
            terminated_state = container.get("state", {}).get("terminated") or {}
            if terminated_state.get("exitCode") and OVER in terminated_state.get("message", ""):
                return _FinalFailure(index, terminated_state)
    return None


def _list_containers(launchers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The statuses of the launchers' containers."""
    return [container for pod in launchers for container in pod.get("status", {}).get("containerStatuses", [])]


def _count_restarts(launchers: Sequence[dict[str, Any]], final_failure: _FinalFailure | None) -> int:
    """How often the run was started again, by another launcher or in the same one."""
    if final_failure is not None:
        return final_failure.launcher_index  # later launchers only repeat the exit code
    restarts_in_pods = sum(container.get("restartCount", 0) for container in _list_containers(launchers))
    return max(len(launchers) - 1, 0) + restarts_in_pods


def _find_last_exit_code(launchers: Sequence[dict[str, Any]]) -> int | None:
    """The exit code of the last launcher that has failed; None if none has."""
    exit_codes = (_read_exit_code(container) for container in reversed(_list_containers(launchers)))
    return next((exit_code for exit_code in exit_codes if exit_code is not None), None)


def read_state(mpijob: dict[str, Any], pods: Sequence[dict[str, Any]]) -> State:
    """The state that an MPIJob and its pods describe.

    The first case that applies decides:

    1. The operator has ended the MPIJob.
    2. A launcher's termination message says that the run is over, with a failure.
    3. A pod cannot start; other pods may run meanwhile.
    4. The job runs.
    5. The job has not started.
    """
    status = mpijob.get("status", {})
    conditions = {
        condition["type"]: condition for condition in status.get("conditions", []) if condition["status"] == "True"
    }
    launchers = list_launchers(pods)
    final_failure = _find_final_failure(launchers)
    restarts = _count_restarts(launchers, final_failure)
    created_at = _parse_moment(mpijob["metadata"], "creationTimestamp")

    def make_end(words: str, exit_code: int | None, ended_at: float | None, holds_nodes: bool = False) -> State:
        return State(
            phase=ENDED, words=words, restarts=restarts, code=exit_code, meaning=messages.explain_exit(exit_code),
            seconds=_subtract(ended_at, created_at), starts_noun="launchers", holds_nodes=holds_nodes,
        )  # fmt: skip

    # An evicted worker also sets Failed, and the launcher continues. So Failed is final only with a completion time.
    failed_condition, completed_at = conditions.get("Failed"), _parse_moment(status, "completionTime")
    if completed_at is not None and failed_condition is not None:
        return make_end(f"Failed{_describe_cause(failed_condition)}", _find_last_exit_code(launchers), completed_at)
    if completed_at is not None and "Succeeded" in conditions:
        return make_end("Succeeded", 0, completed_at)
    if final_failure is not None:  # the run is over, but its MPIJob still holds the nodes of the workers
        ended_at = _parse_moment(final_failure.container_end, "finishedAt")
        return make_end("Failed", final_failure.container_end["exitCode"], ended_at, holds_nodes=True)
    waited_seconds = _subtract(time.time(), created_at)
    explained_wait = messages.explain_wait(pods)
    if explained_wait is not None:
        cause, meaning = explained_wait
        return State(WAITING, f"waits ({cause})", restarts, meaning=meaning, seconds=waited_seconds)
    if "Running" in conditions:
        nodes = sorted({node for pod in pods if (node := pod.get("spec", {}).get("nodeName"))})
        nodes_text = f" on {', '.join(nodes)}" if nodes else ""
        eviction_text = _describe_cause(failed_condition) if failed_condition else ""
        return State(RUNNING, f"Running{nodes_text}{eviction_text}", restarts)
    if "Suspended" in conditions:
        return State(WAITING, "Suspended", restarts, seconds=waited_seconds)
    # Without a condition, Kubernetes has accepted the MPIJob, and the operator has recorded nothing of it yet.
    return State(WAITING, "Created" if conditions else "accepted", restarts, seconds=waited_seconds)


def _describe_cause(condition: dict[str, Any]) -> str:
    """The operator's reason and message for a condition."""
    cause = ": ".join(part for part in (condition.get("reason"), condition.get("message")) if part)
    return f" ({cause})" if cause else ""


def _subtract(end: float | None, start: float | None) -> float | None:
    """The seconds from `start` to `end`; None if one of them is unknown."""
    return end - start if end is not None and start is not None else None


def _parse_moment(fields: dict[str, Any], name: str) -> float | None:
    """A Kubernetes timestamp in seconds since 1970; None if it is missing."""
    text = fields.get(name)
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else None


def _read_exit_code(container: dict[str, Any]) -> int | None:
    """The exit code of a container that has failed, now or before its restart; None if it has not failed."""
    for field in ("state", "lastState"):
        terminated_state = container.get(field, {}).get("terminated")
        if terminated_state and terminated_state.get("exitCode"):
            return int(terminated_state["exitCode"])
    return None
