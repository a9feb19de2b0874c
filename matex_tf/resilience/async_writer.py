"""A thread that writes the states of a run, so that training does not wait for the disk."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import numpy as np

from matex_tf.resilience import serialization, state_files
from matex_tf.runtime import notes, real_files
from matex_tf.thread_flag import starts_own

_TICK = 0.01  # seconds


class Writer:
    """A thread that writes states, one after another.

    A signal's handler may call `flush` wherever the other methods are, so that nothing here holds a lock.
    """

    def __init__(self, folder: state_files.Folder):
        self.folder = folder
        self.failed: str | None = None
        self._orders: list[tuple[str, int, Any, list[np.ndarray]]] = []  # the first is being written
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()  # whose `put` is re-entrant
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        return bool(self._orders)

    def write(self, kind: str, number: int, content: Any) -> None:
        """Have `content` written. It is copied before this returns, which waits where two others are to be written."""
        arrays: list[np.ndarray] = []
        packed = serialization.pack_value(content, arrays)
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_orders, name="matex_tf run state", daemon=True)
            with starts_own.set():
                self._thread.start()
        while len(self._orders) >= 2:
            time.sleep(_TICK)
        self._orders.append((kind, number, packed, arrays))
        self._wakes.put(None)

    def flush(self) -> None:
        """Return when all is on the disk, or has failed."""
        self._wakes.put(None)  # a signal may have come before `write` has done so
        while self._orders:
            time.sleep(_TICK)

    def _write_orders(self) -> None:
        while True:
            if not self._orders:
                self._wakes.get()
                continue
            order = self._orders[0]
            try:
                with real_files.use_real_files():
                    self.folder.write_file(*order)
                self.failed = None
            except Exception as error:
                # A full disk is no reason to lose the training as well; nor may whoever waits for this wait for ever.
                self.failed = f"{type(error).__name__}: {error}"
                notes.print_note(
                    f"the state of this run could not be written to {self.folder.path} ({self.failed}); training goes "
                    "on, and if it has to be started again, it will go on from an older state"
                )
            finally:
                del self._orders[0]
