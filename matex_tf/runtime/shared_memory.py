"""Removes the shared-memory files of killed ranks: Open MPI leaves them behind if mpirun itself is killed.

Each rank lists its files in its record, a file that `matex run` reads (`rank_records`). So `matex run` removes files of
its own ranks only.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from matex_tf.runtime import rank_records, real_files

_NAMES = ("sm_segment.", "vader_segment.")  # the beginnings of Open MPI's names


def note_files() -> None:
    """Record the shared-memory files of this rank. Does nothing without `matex run`."""
    with real_files.use_real_files(), contextlib.suppress(OSError):
        statuses = {path: os.stat(path) for path in _list_mapped("self")}
        files = [[path, status.st_dev, status.st_ino] for path, status in statuses.items()]
        rank_records.note(namespace=rank_records.read_namespace(), shared=files)


def remove_files(folder: str | os.PathLike[str], even_used: bool = False) -> bool:
    """Remove this host's recorded files in `folder` that no process uses. Returns whether none remains.

    `even_used`: also remove files that processes use, which are about to end. They keep the memory until then.
    """
    paths = list(_list_noted(folder))
    used_paths = set()
    if paths and not even_used:
        used_paths = {path for process in os.listdir("/proc") for path in _list_mapped(process)}
    for path in set(paths) - used_paths:
        with contextlib.suppress(OSError):
            os.remove(path)
    return used_paths.isdisjoint(paths)


def _list_noted(folder: str | os.PathLike[str]) -> Iterator[str]:
    """The recorded files that still exist unchanged: of this user, of this boot of the host, with the same inode."""
    namespace = rank_records.read_namespace()
    host_records = (record for record in rank_records.read_records(folder) if record.namespace == namespace)
    for path, device, inode in (file for record in host_records for file in record.shared):
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            is_unchanged = (status.st_dev, status.st_ino, status.st_uid) == (device, inode, os.getuid())
            if is_unchanged and stat.S_ISREG(status.st_mode) and os.path.basename(path).startswith(_NAMES):
                yield path


def _list_mapped(process: str) -> set[str]:
    """The shared-memory files that a process has mapped. The sixth field of a line of "maps" is a path."""
    if process != "self" and not process.isdigit():
        return set()
    try:
        with open(f"/proc/{process}/maps") as file:
            paths = {fields[5].rstrip("\n") for line in file if len(fields := line.split(None, 5)) == 6}
    except OSError:
        return set()  # the process has ended, or belongs to another user
    return {path for path in paths if os.path.basename(path).startswith(_NAMES) and os.path.exists(path)}
