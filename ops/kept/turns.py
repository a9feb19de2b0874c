"""Mutual exclusion by file locks: of many processes that need the same file, one makes it and the others wait.

`ops/cache.py` uses it for the builds of the compiled ops. Waiting processes sleep in the kernel, which releases the
locks of a process that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from matex_tf.thread_flag import starts_own

_PATIENCE = 2.0  # seconds of waiting before a message


class LockError(RuntimeError):
    """A lock file cannot be opened."""


@contextlib.contextmanager
def take_turn(
    locks: Sequence[Path],
    is_made: Callable[[], bool],
    say_waiting: Callable[[], None],
    say_lockless: Callable[[Path, OSError], None],
) -> Iterator[bool]:
    """A context that yields whether this process is to make the file; False: another process has made it.

    Args:
        locks: the lock files, taken one after another: first a lock of this host, then a lock on the file system that
            hosts share. So only one process of a host waits for the second.
        is_made: whether the file is there.
        say_waiting: called once if this process waits for long.
        say_lockless: called with a lock file whose file system has no locks, and the error. This process then continues
            without that lock.

    Raises:
        LockError: a lock file cannot be opened, or is a link.
    """
    with contextlib.ExitStack() as open_locks:
        for path in locks:
            lock_file = open_locks.enter_context(_open_lock(path))
            while not _try_lock(lock_file, functools.partial(say_lockless, path)):
                _wait_for_holder(lock_file, say_waiting)
                if is_made():
                    yield False
                    return
        yield not is_made()


def _open_lock(path: Path) -> Any:
    try:
        # For reading, too: without that NFS grants no shared lock.
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "w")
    except OSError as error:
        raise LockError(f"{path}: expected a lock file of your own, found: {error.strerror}") from error


def _try_lock(file: Any, say_lockless: Callable[[OSError], None]) -> bool:
    """Take the lock if it is free. Returns whether this process may go on: with it, or because there are no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        say_lockless(error)  # no locks on this file system: each host then builds for itself, under its own file name
    return True


def _wait_for_holder(file: Any, say_waiting: Callable[[], None]) -> None:
    """Sleep until the holder has released the lock. The request is for a shared lock, so all waiters then continue."""
    timer = threading.Timer(_PATIENCE, say_waiting)
    timer.daemon = True
    with starts_own.set():  # the timer's thread runs no code of the script
        timer.start()
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
        fcntl.flock(file, fcntl.LOCK_UN)
    finally:
        timer.cancel()
