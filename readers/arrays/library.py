"""Calls into the C libraries of netCDF4 and h5py: one at a time, from one thread, and never without an end.

They are not made for several threads, and on a damaged file they can go round in circles. Such a call is told from a
slow disk by the processor time of its thread.
"""

from __future__ import annotations

import ctypes
import queue
import signal
import threading
import time
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
    most = _MOST_SECONDS if most_seconds is None else most_seconds
    global _worker
    with _one_at_a_time:
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
