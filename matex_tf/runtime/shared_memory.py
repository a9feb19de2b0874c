"""Files of memory that ranks share, which Open MPI leaves where mpirun itself is killed: noted by ranks, and removed.

The notes are in the records of the ranks, so that `matex run` removes no files but those of its own ranks.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from matex_tf.runtime import rank_records, real_files

_NAMES = ("sm_segment.", "vader_segment.")


def note_files() -> None:
    """Note the files of memory that this rank shares with others; nothing without `matex run`."""
    with real_files.use_real_files(), contextlib.suppress(OSError):
        found = []
        for path in _list_mapped("self"):
            state = os.stat(path)
            found.append([path, state.st_dev, state.st_ino])
        rank_records.note(namespace=rank_records.read_namespace(), shared=found)


def remove_files(folder: str | os.PathLike[str], even_used: bool = False) -> bool:
    """Remove the files of this host that are noted in `folder` and that no process uses; whether none is left.

    `even_used`: those, too, that a process uses which is about to end; it keeps the memory, without a name.
    """
    paths = list(_list_noted(folder))
    used = set() if even_used or not paths else {path for one in os.listdir("/proc") for path in _list_mapped(one)}
    for path in set(paths) - used:
        with contextlib.suppress(OSError):
            os.remove(path)
    return used.isdisjoint(paths)


def _list_noted(folder: str | os.PathLike[str]) -> Iterator[str]:
    """The files that are still those which were noted: of this user, of this start of the host, not others in place."""
    here = (one for one in rank_records.read_records(folder) if one.namespace == rank_records.read_namespace())
    for path, device, number in (noted for one in here for noted in one.shared):
        with contextlib.suppress(OSError):
            state = os.lstat(path)
            same = (state.st_dev, state.st_ino, state.st_uid) == (device, number, os.getuid())
            if same and stat.S_ISREG(state.st_mode) and os.path.basename(path).startswith(_NAMES):
                yield path


def _list_mapped(process: str) -> set[str]:
    """The files of such names that a process has in its memory."""
    if process != "self" and not process.isdigit():
        return set()
    try:
        with open(f"/proc/{process}/maps") as file:
            paths = {words[5].rstrip("\n") for line in file if len(words := line.split(None, 5)) == 6}
    except OSError:
        return set()  # it has ended, or is another user's
    return {path for path in paths if os.path.basename(path).startswith(_NAMES) and os.path.exists(path)}
