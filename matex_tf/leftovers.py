"""Files and folders that a process holds while it lives, so that those of killed runs can be told and removed."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import stat
import tempfile
import time


def hold(path: str) -> int | None:
    """Hold `path` while the descriptor that is returned is open in this process or one that it forks.

    None where another process holds it.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def sweep(prefix: str) -> None:
    """Remove this user's temporary files and folders whose names begin with `prefix` and that nobody holds.

    One that was made in the last minute may not be held yet; it stays.
    """
    for path in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), glob.escape(prefix) + "*")):
        try:
            state = os.lstat(path)
            if state.st_uid != os.getuid() or stat.S_ISLNK(state.st_mode) or time.time() - state.st_mtime < 60:
                continue
            handle = hold(path)
            if handle is None:
                continue
            shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.remove(path)
            os.close(handle)
        except FileNotFoundError:
            continue  # another rank was first
