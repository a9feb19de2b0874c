"""Locked temporary files and folders. A killed process holds no lock, so others find its files and remove them."""

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
_MAX_WAIT = 5.0  # seconds for killed processes to end and release their locks


def hold_folder(path: str) -> int | None:
    """Lock `path` while the returned descriptor is open in this process or a fork.

    None if another process holds the lock. On a file system without locks, every process gets it.
    """
    descriptor, is_free, _ = _try_lock(path)
    if is_free:
        return descriptor
    os.close(descriptor)
    return None


def hold_file(path: str, waits: bool = False, tell: Callable[[OSError], None] | None = None) -> int | None:
    """Lock a file, which is created if necessary. Returns what `hold_folder` returns.

    Args:
        waits: wait for the lock instead of returning None.
        tell: called with the error of a file system without locks.
    """
    while True:
        descriptor, is_free, lack_error = _try_lock(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, waits)
        if lack_error is not None and tell is not None:
            tell(lack_error)
        if not is_free:
            os.close(descriptor)
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        os.close(descriptor)  # the previous holder has removed the file: lock a new one


def make_folder(prefix: str, folder: str | os.PathLike[str]) -> tuple[str, int]:
    """Create a folder in `folder` and lock it. Returns its path and the descriptor to close afterwards."""
    while True:
        path = tempfile.mkdtemp(prefix=prefix, dir=folder)
        with contextlib.suppress(FileNotFoundError):  # a concurrent sweep may remove the folder before it is locked
            descriptor = hold_folder(path)
            if descriptor is not None:
                if os.path.isdir(path):
                    return path, descriptor
                os.close(descriptor)


def remove_noted(folder: str | os.PathLike[str]) -> None:
    """Remove the private folders of this host's ranks, which the ranks' records in `folder` list, once the ranks end.

    Waits for ranks that were just killed. Folders of surviving ranks remain.
    """
    deadline = time.monotonic() + _MAX_WAIT
    records = (record for record in rank_records.read_records(folder) if record.host == socket.gethostname())
    for path in (path for record in records for path in record.folders):
        while os.path.isdir(path):
            sweep_folders(os.path.basename(path), os.path.dirname(path), min_seconds=0)
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)


def _try_lock(
    path: str, flags: int = os.O_RDONLY | os.O_NOFOLLOW, waits: bool = False
) -> tuple[int, bool, OSError | None]:
    """Open and lock `path`. Returns the descriptor, whether this process may use it, and the error of missing locks.

    Without locks on the file system, every process may use it. With locks, the error is None.
    """
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        return descriptor, False, None
    except OSError as error:
        if not file_locks.lacks_locks(error):
            os.close(descriptor)
            raise
        return descriptor, True, error
    return descriptor, True, None


def sweep_folders(
    prefix: str,
    folder: str | os.PathLike[str] | None = None,
    min_seconds: float | None = None,
    may_remove: Callable[[str], bool] = lambda path: True,
) -> None:
    """Remove this user's unlocked files and folders in `folder` with the given `prefix`.

    Args:
        folder: by default the folder for temporary files.
        min_seconds: younger entries remain. The default is a minute, because a new entry may not be locked yet; with
            `folder` a day, because hosts without common locks may share it. On a file system without locks, entries
            remain for a day in any case.
        may_remove: the last condition for each entry.
    """
    parent, default_seconds = (tempfile.gettempdir(), _MINUTE) if folder is None else (os.fspath(folder), _DAY)
    min_seconds = default_seconds if min_seconds is None else min_seconds
    for path in glob.glob(os.path.join(glob.escape(parent), glob.escape(prefix) + "*")):
        try:
            status = os.lstat(path)
            age = time.time() - status.st_mtime
            if status.st_uid != os.getuid() or stat.S_ISLNK(status.st_mode) or age < min_seconds:
                continue
            descriptor, is_free, lack_error = _try_lock(path)
            try:
                if is_free and (lack_error is None or age >= _DAY) and may_remove(path):
                    shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.remove(path)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            continue  # another rank removed it first
