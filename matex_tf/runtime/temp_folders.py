"""Files and folders that a process holds while it lives, so that those of killed runs can be told and removed."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable

from matex_tf.runtime import rank_records
from matex_tf.world import file_locks

_MINUTE, _DAY = 60.0, 86400.0
_PATIENCE = 5.0  # seconds


def hold_folder(path: str) -> int | None:
    """Hold `path` while the descriptor that is returned is open in this process or one that it forks.

    None where another process holds it. On a file system without such locks all that open it hold it.
    """
    handle, is_free, _ = _try_lock(path)
    if is_free:
        return handle
    os.close(handle)
    return None


def hold_file(path: str, waits: bool = False, tell: Callable[[OSError], None] | None = None) -> int | None:
    """The same of a file, which is made where there is none; `waits` for who holds it, and never gives None.

    `tell` is given the error of a file system without locks.
    """
    while True:
        handle, is_free, lack = _try_lock(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, waits)
        if lack is not None and tell is not None:
            tell(lack)
        if not is_free:
            os.close(handle)
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        os.close(handle)  # who held it has removed it


def make_folder(prefix: str, folder: str | os.PathLike[str]) -> tuple[str, int]:
    """A new folder in `folder` that this process holds, and the descriptor to close when it is done with."""
    while True:
        path = tempfile.mkdtemp(prefix=prefix, dir=folder)
        with contextlib.suppress(FileNotFoundError):  # who sweeps takes it for one that is left
            handle = hold_folder(path)
            if handle is not None:
                if os.path.isdir(path):
                    return path, handle
                os.close(handle)


def remove_noted(folder: str | os.PathLike[str]) -> None:
    """Remove the folders of this host that the records in `folder` name, once the processes that hold them have ended.

    Whoever has them killed may come here before they are gone. Those of who lives on stay.
    """
    until = time.monotonic() + _PATIENCE
    records = (one for one in rank_records.read_records(folder) if one.host == socket.gethostname())
    for path in (path for one in records for path in one.folders):
        while os.path.isdir(path):
            sweep_folders(os.path.basename(path), os.path.dirname(path), least=0)
            if time.monotonic() > until:
                break
            time.sleep(0.02)


def _try_lock(
    path: str, flags: int = os.O_RDONLY | os.O_NOFOLLOW, waits: bool = False
) -> tuple[int, bool, OSError | None]:
    """The open `path`, whether no other process holds it, and the error of a file system that cannot tell."""
    handle = os.open(path, flags, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        return handle, False, None
    except OSError as error:
        if not file_locks.lacks_locks(error):
            os.close(handle)
            raise
        return handle, True, error
    return handle, True, None


def sweep_folders(
    prefix: str,
    folder: str | os.PathLike[str] | None = None,
    least: float | None = None,
    may_go: Callable[[str], bool] = lambda path: True,
) -> None:
    """Remove this user's files and folders in `folder` whose names begin with `prefix` and that nobody holds.

    What is younger than `least` seconds stays. That is by default a minute, as one that was just made may not be held
    yet, and a day in another `folder` than that of temporary files, which hosts may share that do not see each other's
    locks, and on a file system without locks. `may_go` is asked last of each.
    """
    where, usual = (tempfile.gettempdir(), _MINUTE) if folder is None else (os.fspath(folder), _DAY)
    least = usual if least is None else least
    for path in glob.glob(os.path.join(glob.escape(where), glob.escape(prefix) + "*")):
        try:
            state = os.lstat(path)
            if state.st_uid != os.getuid() or stat.S_ISLNK(state.st_mode) or time.time() - state.st_mtime < least:
                continue
            handle, is_free, lack = _try_lock(path)
            try:
                if is_free and (lack is None or time.time() - state.st_mtime >= _DAY) and may_go(path):
                    shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.remove(path)
            finally:
                os.close(handle)
        except FileNotFoundError:
            continue  # another rank was first
