"""The output of a job's launchers, from `kubectl logs`, one launcher after the other.

A launcher is the container that runs `matex run`. Kubernetes may start another one if it fails.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import Any

_CHUNK_BYTES = 1 << 16


class Logs:
    """The output of the launchers given to `follow_pods`, in the order of their start."""

    def __init__(self, namespace: str):
        self._options = [f"--namespace={namespace}"] if namespace else []
        self._child: subprocess.Popen[bytes] | None = None  # `kubectl logs` of the current launcher
        self._seen_containers: set[tuple[str, int]] = set()  # (name of the pod, number of restarts)
        self._waiting_pods: list[str] = []  # the pods of the next launchers
        self.last = False  # set by the caller: whether no further launcher will start

    def __enter__(self) -> Logs:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_child()

    def follow_pods(self, pods: Sequence[dict[str, Any]]) -> None:
        """Add launchers in the order of their start. A restarted container counts as another launcher."""
        for pod in pods:
            for container in pod.get("status", {}).get("containerStatuses", []):
                has_begun = {"running", "terminated"} & container.get("state", {}).keys()
                pod_and_restart = pod["metadata"]["name"], int(container.get("restartCount", 0))
                if has_begun and pod_and_restart not in self._seen_containers:
                    self._seen_containers.add(pod_and_restart)
                    self._waiting_pods.append(pod_and_restart[0])

    def read_more(self) -> bytes:
        """The output since the last call; if `last`, all remaining output."""
        chunks = []
        while self._child or self._waiting_pods:
            file = self._find_file()
            os.set_blocking(file, self.last)
            try:
                while chunk := os.read(file, _CHUNK_BYTES):
                    chunks.append(chunk)
            except BlockingIOError:
                break  # the launcher still runs
            self._end_child()
        return b"".join(chunks)

    def _find_file(self) -> int:
        """The pipe with the output of the current launcher."""
        if self._child is None:
            command = ["kubectl", *self._options, "logs", "--follow", self._waiting_pods.pop(0)]
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        assert self._child.stdout is not None
        return self._child.stdout.fileno()

    def _end_child(self) -> None:
        """End the current `kubectl logs`."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None
