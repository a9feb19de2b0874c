"""Files and folders that a process holds while it lives, so that those of killed runs can be told and removed."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import shutil
import stat
import tempfile
import time


def hold(path: str) -> int | None:
    """Hold `path` while the descriptor that is returned is open in this process or one that it forks.

    None where another process holds it. On a file system without such locks all that open it hold it.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise
    return handle


def sweep(prefix: str, folder: str | os.PathLike | None = None) -> None:
    """Remove this user's files and folders in `folder` whose names begin with `prefix` and that nobody holds.

    One that was made in the last minute may not be held yet; it stays. `folder` is by default that of temporary files;
    in another one, which hosts may share that do not see each other's locks, only what is older than a day goes.
    """
    where, least = (tempfile.gettempdir(), 60) if folder is None else (os.fspath(folder), 86400)
    for path in glob.glob(os.path.join(glob.escape(where), glob.escape(prefix) + "*")):
        try:
            state = os.lstat(path)
            if state.st_uid != os.getuid() or stat.S_ISLNK(state.st_mode) or time.time() - state.st_mtime < least:
                continue
            handle = hold(path)
            if handle is None:
                continue
            shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.remove(path)
            os.close(handle)
        except FileNotFoundError:
            continue  # another rank was first
