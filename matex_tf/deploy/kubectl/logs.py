"""The output of a job's launchers, from `kubectl logs`, one launcher after the other.

A lost connection ends `kubectl logs` while the launcher runs. So output is read again, from its beginning, until a
`kubectl logs` that began after the end of the launcher has read it. Bytes that were returned before are skipped.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Sequence
from typing import Any

_CHUNK_BYTES = 1 << 16
_Launcher = tuple[str, int]  # name of the pod, number of restarts of its container


class Logs:
    """The output of the launchers given to `follow_pods`, in the order of their start."""

    def __init__(self, namespace: str):
        self._options = [f"--namespace={namespace}"] if namespace else []
        self._child: subprocess.Popen[bytes] | None = None  # `kubectl logs` of the first of `_waiting`
        self._reads_all = False  # `_child` began after the end of its launcher
        self._known_bytes = 0  # of the output of `_child`: returned before, and to be skipped
        self._waiting: list[_Launcher] = []  # whose output is to be read, in the order of their start
        self._read_bytes: Counter[_Launcher] = Counter()  # bytes of output that were returned
        self._ended: set[_Launcher] = set()
        self._complete: set[_Launcher] = set()  # whose output was read completely
        self.last = False  # set by the caller: whether no further launcher will start

    def __enter__(self) -> Logs:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_child()

    def follow_pods(self, pods: Sequence[dict[str, Any]]) -> None:
        """Add launchers in the order of their start. A restarted container counts as another launcher."""
        for pod in pods:
            for container in pod.get("status", {}).get("containerStatuses", []):
                state = container.get("state", {})
                launcher = pod["metadata"]["name"], int(container.get("restartCount", 0))
                has_begun = "running" in state or "terminated" in state
                if has_begun and launcher not in self._complete and launcher not in self._waiting:
                    self._waiting.append(launcher)
                if "terminated" in state:
                    self._ended.add(launcher)

    def read_more(self) -> bytes:
        """The output since the last call; if `last`, all remaining output."""
        chunks = []
        while self._waiting:
            pipe = self._find_file()
            os.set_blocking(pipe, self.last)
            try:
                while chunk := os.read(pipe, _CHUNK_BYTES):
                    chunks.append(self._skip_known(chunk))
            except BlockingIOError:
                break  # the launcher still runs
            self._end_child()
            if self._reads_all:
                self._complete.add(self._waiting.pop(0))
            elif self._waiting[0] not in self._ended:
                self._waiting.pop(0)  # `follow_pods` adds it again
        return b"".join(chunks)

    def _find_file(self) -> int:
        """The pipe with the output of the current launcher."""
        if self._child is None:
            launcher = self._waiting[0]
            self._reads_all, self._known_bytes = launcher in self._ended, self._read_bytes[launcher]
            command = ["kubectl", *self._options, "logs", "--follow", launcher[0]]
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        assert self._child.stdout is not None
        return self._child.stdout.fileno()

    def _skip_known(self, chunk: bytes) -> bytes:
        """The part of `chunk`, output of the current launcher, that was not returned before."""
        new_bytes = chunk[self._known_bytes :]
        self._known_bytes -= len(chunk) - len(new_bytes)
        self._read_bytes[self._waiting[0]] += len(new_bytes)
        return new_bytes

    def _end_child(self) -> None:
        """End the current `kubectl logs`."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None
