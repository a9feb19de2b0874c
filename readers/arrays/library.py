"""Calls the C libraries of netCDF4 and h5py: one call at a time, on one thread, the worker, with a limit of CPU time.

The libraries are not thread-safe, and on a damaged file they can loop forever. The CPU time of the worker distinguishes
such a loop from a slow disk. A worker in a loop is suspended, and its call raises a ReaderError.
"""

from __future__ import annotations

import collections
import ctypes
import os
import queue
import signal
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from matex_tf.readers.base.formats import ReaderError

Result = TypeVar("Result")
_Results = queue.SimpleQueue[tuple[Any, "BaseException | None"]]
_MAX_SECONDS = 5.0  # CPU seconds of a call that opens a file, or reads up to `_LARGE_BYTES` of it
_BYTES_A_SECOND = 20 << 20  # the slowest decompression, for the bytes beyond
_LARGE_BYTES = 64 << 20  # calls that read more may take longer
_CHECK_SECONDS = 0.5  # the time between checks of the worker's CPU time

_one_at_a_time = threading.Lock()
_worker: _Worker | None = None


class OpenFile:
    """A file that is open in a library. It is closed when this object is dropped.

    Python's garbage collection would close the file on any thread, during a library call of another thread, and the
    library would crash.
    """

    def __init__(self, open_file: Callable[[], Any]):
        self.file = call_library(open_file)
        self._finish = weakref.finalize(self, _close_dropped, self.file.close, os.getpid())
        self._finish.atexit = False

    def close(self) -> None:
        if self._finish.detach() is not None:
            call_library(self.file.close)


# `close` methods of dropped files that are still open.
_dropped: collections.deque[Callable[[], None]] = collections.deque()


def _close_dropped(close: Callable[[], None] | None = None, process_id: int | None = None) -> None:
    """Close dropped files, also the file of `close`, which the process `process_id` has opened.

    If a library call is running, its caller closes them when the call ends. The garbage collector may call this
    function at any moment and on any thread, so it never waits for the lock, and the worker never waits for itself.
    """
    if close is not None and process_id == os.getpid():  # a forked child does not close its parent's files
        _dropped.append(close)
    while _dropped and threading.current_thread() is not _worker and _one_at_a_time.acquire(blocking=False):
        try:
            if _worker is not None and _worker.is_stuck:
                return  # closing would fail, and the first error has been raised or shown
            _call_by_worker(_dropped.popleft(), _MAX_SECONDS)
        except Exception:  # shown, and not raised: the present call is about another file, or it is no call at all
            traceback.print_exc()
        finally:
            _one_at_a_time.release()


class _Worker(threading.Thread):
    """The thread of all library calls. `is_stuck`: a call has not returned, so the thread was suspended forever."""

    def __init__(self) -> None:
        super().__init__(name="matex_tf reader", daemon=True)
        self.actions: queue.SimpleQueue[tuple[Callable[[], Any], _Results]] = queue.SimpleQueue()
        self.is_stuck = False
        self.start()

    def run(self) -> None:
        while True:
            action, results = self.actions.get()
            try:
                result, error = action(), None
            except BaseException as exception:  # raised again in the waiting thread
                result, error = None, exception
            results.put((result, error))
            del action, results, result, error  # an idle worker keeps no file or array alive

    def stop_thread(self) -> None:
        """Suspend the thread forever. If it went on computing while the process exits, the process would crash."""
        self.is_stuck = True
        # The handler of the signal is `pause` of the C library: a handler in Python would run on the main thread.
        signal_number = signal.SIGRTMIN + 7
        libc = ctypes.CDLL(None)
        libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
        libc.signal(signal_number, ctypes.cast(libc.pause, ctypes.c_void_p))
        signal.pthread_kill(self._find_thread_id(), signal_number)

    def measure_processor_time(self) -> float:
        """The CPU seconds of the thread so far."""
        return time.clock_gettime(time.pthread_getcpuclockid(self._find_thread_id()))

    def _find_thread_id(self) -> int:
        assert self.ident is not None  # the constructor has started the thread
        return self.ident


def estimate_seconds(size: int) -> float:
    """The limit of CPU seconds for a call that reads `size` bytes."""
    return _MAX_SECONDS + max(0, size - _LARGE_BYTES) / _BYTES_A_SECOND


def call_library(action: Callable[[], Result], max_seconds: float | None = None) -> Result:
    """Return `action()`, a call into netCDF4 or h5py. Raises ReaderError if it exceeds `max_seconds` of CPU time."""
    try:
        with _one_at_a_time:
            return _call_by_worker(action, _MAX_SECONDS if max_seconds is None else max_seconds)
    finally:
        _close_dropped()


def _call_by_worker(action: Callable[[], Result], max_seconds: float) -> Result:
    """Run `action()` on the worker thread. The caller holds the lock."""
    global _worker
    if _worker is None or not _worker.is_alive():  # a forked child does not have its parent's threads
        _worker = _Worker()
    if _worker.is_stuck:
        raise ReaderError(
            "an earlier library call never returned from a damaged file; restart Python to read other files"
        )
    begin_seconds = _worker.measure_processor_time()
    # A queue of this call: the caller of an earlier one may not have waited for its result (KeyboardInterrupt).
    results: _Results = queue.SimpleQueue()
    _worker.actions.put((action, results))
    while True:
        try:
            result, error = results.get(timeout=_CHECK_SECONDS)
            break
        except queue.Empty:
            if _worker.measure_processor_time() - begin_seconds > max_seconds:
                _worker.stop_thread()
                raise ReaderError(
                    f"one call of its library used {max_seconds:.0f} s of CPU time without an end"
                ) from None
    if error is not None:
        raise error
    return result
