"""A thread that writes the states of a run, so that training does not wait for the disk."""

from __future__ import annotations

import queue
import threading
from typing import Any

import numpy as np

from matex_tf.resilience import serialization, state_files
from matex_tf.runtime import notes, real_files


class Writer:
    """A thread that writes states, one after another."""

    def __init__(self, folder: state_files.Folder):
        self.folder = folder
        self.failed: str | None = None
        self._orders: queue.Queue[tuple[str, int, Any, list[np.ndarray]]] = queue.Queue(maxsize=1)
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        return self._orders.unfinished_tasks > 0

    def write(self, kind: str, number: int, content: Any) -> None:
        """Have `content` written. It is copied before this returns, which waits where two others are to be written."""
        arrays: list[np.ndarray] = []
        packed = serialization.pack_value(content, arrays)
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_orders, name="matex_tf run state", daemon=True)
            self._thread.start()
        self._orders.put((kind, number, packed, arrays))

    def flush(self) -> None:
        """Return when all is on the disk, or has failed."""
        self._orders.join()

    def _write_orders(self) -> None:
        while True:
            order = self._orders.get()
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
                self._orders.task_done()
