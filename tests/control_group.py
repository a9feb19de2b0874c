"""Real control groups with a limit of memory, for tests; of version 2, or of version 1 where that has the memory."""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
NEEDED = "a control group with a limit of memory is needed: only root makes one, where /sys/fs/cgroup can be written"


@dataclass(frozen=True)
class Group:
    """A folder of the control groups' own file system."""

    path: Path

    def wrap(self, words: list[str]) -> list[str]:
        """The command that runs `words` in the group."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.path / "cgroup.procs"), *words]


@contextlib.contextmanager
def make_group(limit: int) -> Iterator[Group | None]:
    """A group whose processes may take `limit` bytes together; None where none can be made."""
    path = None
    for root, name in ((ROOT, "memory.max"), (ROOT / "memory", "memory.limit_in_bytes")):
        with contextlib.suppress(OSError):
            if name == "memory.max":
                if "memory" not in (root / "cgroup.controllers").read_text().split():
                    continue
                (root / "cgroup.subtree_control").write_text("+memory")
            elif not (root / name).exists():
                continue
            made = root / f"matex-test-{os.getpid()}"
            made.mkdir()
            path = made
            (made / name).write_text(str(limit))
            break
    try:
        yield Group(path) if path is not None else None
    finally:
        for _ in range(50):
            if path is None or not path.exists():
                break
            with contextlib.suppress(OSError):  # what has ended may still be counted
                path.rmdir()
            time.sleep(0.1)
