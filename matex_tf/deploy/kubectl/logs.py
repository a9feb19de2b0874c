"""What the launcher of a job prints, by `kubectl logs`: one after the other of those that Kubernetes starts."""

from __future__ import annotations

import os
import subprocess
from typing import Any

_PIECE = 1 << 16


class Logs:
    """The output of the launchers that `follow_pod` was told of. `last` says that no more of it will come."""

    def __init__(self, namespace: str):
        self._options = [f"--namespace={namespace}"] if namespace else []
        self._child: subprocess.Popen[bytes] | None = None
        self._of: tuple[str, int] | None = None
        self.last = False

    def __enter__(self) -> Logs:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_child()

    def follow_pod(self, pod: dict[str, Any]) -> None:
        """Read what this pod prints, once its container has begun; a container that began again is another."""
        for container in pod.get("status", {}).get("containerStatuses", []):
            has_begun = {"running", "terminated"} & container.get("state", {}).keys()
            which = pod["metadata"]["name"], int(container.get("restartCount", 0))
            if has_begun and which != self._of and self._child is None:
                self._of = which
                words = ["kubectl", *self._options, "logs", "--follow", which[0]]
                self._child = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                )

    def read_more(self) -> bytes:
        """What came since the last call; all that is left where nothing will follow."""
        if self._child is None or self._child.stdout is None:
            return b""
        file = self._child.stdout.fileno()
        os.set_blocking(file, self.last)
        pieces = []
        try:
            while piece := os.read(file, _PIECE):
                pieces.append(piece)
            self._end_child()
        except BlockingIOError:
            pass  # it still prints
        return b"".join(pieces)

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None
