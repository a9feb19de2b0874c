"""Calls into the C libraries of netCDF4 and h5py: one at a time, from one thread, and never without an end.

They are not made for several threads, and on a damaged file they can go round in circles. Such a call is told from a
slow disk by the processor time of its thread.
"""

from __future__ import annotations

import collections
import ctypes
import os
import queue
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from matex_tf.readers.base.formats import ReaderError

Result = TypeVar("Result")
# Of one call: opening a file, or reading and decoding a few megabytes of it.
_MOST_SECONDS = 5.0
_LOOK_EVERY = 0.5

# The slowest decompression of large ones.
_BYTES_A_SECOND = 20 << 20

_one_at_a_time = threading.Lock()
_worker: _Worker | None = None


class OpenFile:
    """A file that a library has open. It is closed as soon as nobody has this object any more.

    Left to Python's garbage collection, a file would be closed by whichever thread comes to it, beside a call of
    another one; the libraries crash then.
    """

    def __init__(self, open: Callable[[], Any]):
        self.file = call_library(open)
        self._finish = weakref.finalize(self, _close_dropped, self.file.close, os.getpid())
        self._finish.atexit = False

    def close(self) -> None:
        if self._finish.detach() is not None:
            call_library(self.file.close)


# What is to be closed of files that nobody has any more.
_dropped: collections.deque[Callable[[], None]] = collections.deque()


def _close_dropped(close: Callable[[], None] | None = None, owner: int | None = None) -> None:
    """Close files that nobody has any more, unless a call is under way: whoever made that does it then.

    A garbage collection calls this in the middle of anything, so it waits for no lock.
    """
    if close is not None and owner == os.getpid():  # a forked child leaves its parent's files alone
        _dropped.append(close)
    if _worker is not None and _worker.lost:
        return  # nothing is closed any more, which would be said in place of the error that is under way
    while _dropped and threading.current_thread() is not _worker and _one_at_a_time.acquire(blocking=False):
        try:
            _call_by_worker(_dropped.popleft(), _MOST_SECONDS)
        finally:
            _one_at_a_time.release()


class _Worker(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="matex_tf reader", daemon=True)
        self.todo: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self.lost = False
        self.start()

    def run(self) -> None:
        while True:
            action = self.todo.get()
            try:
                result, error = action(), None
            except BaseException as raised:  # handed to the thread that waits for it
                result, error = None, raised
            self.done.put((result, error))
            del action, result, error

    def stop_thread(self) -> None:
        """Let the thread sleep in its place for good: it would go on computing while the process ends, and crash it."""
        self.lost = True
        number = signal.SIGRTMIN + 7
        libc = ctypes.CDLL(None)
        libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
        libc.signal(number, ctypes.cast(libc.pause, ctypes.c_void_p))
        signal.pthread_kill(self._find_number(), number)

    def measure_processor_time(self) -> float:
        return time.clock_gettime(time.pthread_getcpuclockid(self._find_number()))

    def _find_number(self) -> int:
        assert self.ident is not None  # it was started when it was made
        return self.ident


def estimate_seconds(size: int) -> float:
    """How long a call that reads `size` bytes may compute."""
    return _MOST_SECONDS + max(0, size - (64 << 20)) / _BYTES_A_SECOND


def call_library(action: Callable[[], Result], most_seconds: float | None = None) -> Result:
    """`action()`, which calls netCDF4 or h5py. Raises ReaderError if it does not come to an end."""
    try:
        with _one_at_a_time:
            return _call_by_worker(action, _MOST_SECONDS if most_seconds is None else most_seconds)
    finally:
        _close_dropped()


def _call_by_worker(action: Callable[[], Result], most: float) -> Result:
    """`action()` in the thread of calls; for who holds the lock."""
    global _worker
    if _worker is None or not _worker.is_alive():  # a forked child has no threads of its parent's
        _worker = _Worker()
    if _worker.lost:
        raise ReaderError("a library was lost in a damaged file before; start Python anew to read other files")
    begin = _worker.measure_processor_time()
    _worker.todo.put(action)
    while True:
        try:
            result, error = _worker.done.get(timeout=_LOOK_EVERY)
            break
        except queue.Empty:
            if _worker.measure_processor_time() - begin > most:
                _worker.stop_thread()
                raise ReaderError(f"its library computed for {most:.0f} s on one call and found no end") from None
    if error is not None:
        raise error
    return result
