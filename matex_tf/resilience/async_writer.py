"""A background thread that writes the saved states of a run, so that training does not wait for the disk."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

from matex_tf.resilience import serialization, state_files
from matex_tf.runtime import notes, real_files, watchdog
from matex_tf.thread_flag import starts_own

_TICK = 0.01  # seconds between checks of a waiting thread


class Writer:
    """Writes states in a background thread, in the order of the calls of `write`.

    A signal handler may call `flush` while another method runs. Therefore no method holds a lock.
    """

    def __init__(self, folder: state_files.Folder):
        self.folder = folder
        self.failed: str | None = None  # why the last write failed; None if it succeeded
        # The arguments of `Folder.write_file` for each queued state; the first one is being written.
        self._orders: list[tuple[str, int, serialization.Packed]] = []
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()  # wakes the thread; `SimpleQueue.put` is reentrant
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        return bool(self._orders)

    def write(self, kind: str, number: int, content: Any) -> None:
        """Copy `content` and queue it for writing. Waits while two other states are queued, which take memory."""
        packed = serialization.pack_value(content)
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_orders, name="matex_tf run state", daemon=True)
            with starts_own.set():  # the thread runs no code of the script
                self._thread.start()
        self._await_orders(1)
        self._orders.append((kind, number, packed))
        self._wakes.put(None)

    def flush(self) -> None:
        """Wait until every queued state is on disk or has failed."""
        self._wakes.put(None)  # the signal may have interrupted `write` before its own wake-up
        self._await_orders(0)

    def _await_orders(self, max_orders: int) -> None:
        """Wait until at most this number of states is queued. Other ranks may wait for this rank meanwhile."""
        with watchdog.excuse_wait(f"saving the state of the run to {self.folder.path}", watchdog.SAVING_FACTOR):
            while len(self._orders) > max_orders:
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
                # A full disk must neither end the training nor make `flush` wait for ever.
                self.failed = f"{type(error).__name__}: {error}"
                notes.print_note(
                    f"the state of this run could not be written to {self.folder.path} ({self.failed}); training "
                    "continues, and a restart would resume from an older state"
                )
            finally:
                del self._orders[0]
