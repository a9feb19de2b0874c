"""The lock of a build: of many processes that need a library at once, one builds it and the others wait.

Waiting processes sleep in the kernel, which releases the locks of a process that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from matex_tf import errors
from matex_tf.thread_flag import starts_own
from matex_tf.world import file_locks

from . import cache, trust

speaks = True
"""Whether this process prints that it waits: only the first rank of a run does."""
_PATIENCE = 2.0  # seconds of waiting before a message
_lockless: set[Path] = set()  # folders whose lack of locks a message has named


@contextlib.contextmanager
def take_turn(folder: Path, key: str, library_name: str, is_made: Callable[[], bool]) -> Iterator[bool]:
    """A context that yields whether this process is to build `library_name` into `folder`; False: another process has
    built it. `is_made`: whether the library is there.

    The lock is a file in `folder`, which several hosts may share. Only one process of each host requests it; the other
    processes of the host wait for this process, by a lock file on the host. On a file system without locks this process
    continues.

    Raises:
        BuildError: a lock file cannot be opened, or is a link.
    """
    locks = [folder / f"{key}.lock"]
    host_folder = cache.name_host_folder()
    if host_folder.is_absolute() and cache.ensure_folder(host_folder) and not trust.find_exposure(host_folder):
        locks.insert(0, host_folder / f"{key}.host.lock")
    with contextlib.ExitStack() as open_locks:
        for path in locks:
            lock_file = open_locks.enter_context(_open_lock(path))
            while not _try_lock(lock_file, path.parent):
                _wait_for_holder(lock_file, library_name)
                if is_made():
                    yield False
                    return
        yield not is_made()


def _open_lock(path: Path) -> Any:
    try:
        # For reading, too: without that NFS grants no shared lock.
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "w")
    except OSError as error:
        raise errors.BuildError(
            f"{path}: expected a lock file of your own, found: {error.strerror}. Remove it and try again."
        ) from error


def _try_lock(file: Any, folder: Path) -> bool:
    """Take the lock if it is free. Returns whether this process may go on: with it, or because there are no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # no locks on this file system: each host then builds for itself, under its own file name
        if folder not in _lockless:
            _lockless.add(folder)
            advice = "Each host of a job builds the ops: run `matex build` before the job, or use a folder with locks"
            cache.print_message(file_locks.describe_lack(folder, error, advice))
    return True


def _wait_for_holder(file: Any, library_name: str) -> None:
    """Sleep until the holder has released the lock. The request is for a shared lock, so all waiters then continue."""

    def say_waiting() -> None:
        if speaks:
            cache.print_message(f"another process builds {library_name}; this run waits for it")

    timer = threading.Timer(_PATIENCE, say_waiting)
    timer.daemon = True
    with starts_own.set():  # the timer's thread runs no code of the script
        timer.start()
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
        fcntl.flock(file, fcntl.LOCK_UN)
    finally:
        timer.cancel()
