"""Measures the first training steps of this process for `matex plan`, then ends the process.

The engine records events (`records`). A thread counts updates, the sums of a model's gradients: in every kind of script
a step lasts from one update to the next. After enough updates, the training thread measures the input, if the process
is a phantom rank: one that works as rank 0 of ranks that do not exist. Then the measurements are stored in a file, and
the process ends. `matex plan` may start several phantom ranks at the same time, which are numbered copies of one
process (`settings.Phantom`). Of real ranks, `matex plan --check` reads the steps only, so they measure no input.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf import ops, settings, tags
from matex_tf.observe import epochs
from matex_tf.observe.input_costs import Data, InputCost, measure_input
from matex_tf.ops import records
from matex_tf.runtime import real_files
from matex_tf.world import world

_MIN_UPDATES = 8  # fewer give too few steps (`phantoms.LEAST`): such a process goes on after its time limit, to `LIMIT`
_PHANTOM_SECONDS, _REAL_SECONDS = 40, 200
"""Time limits of a phantom rank, and of real ranks, from the first update on. Real ranks train more steps, because they
first choose whether updates overlap with computation.
"""
_INPUT_SECONDS = 10  # limit of the wait for the next step, after which the input is measured
LIMIT = 300
"""Seconds after which a process is ended in any case, counted from `start_measuring`, before the script's imports."""
_MAX_EVENTS = 1 << 18
_MIN_SECONDS = 0.2  # of the measurement of cores
_READY = records.ACTIVITIES.index("ready")  # the event that one gradient is ready
_DATASET = "the dataset of an iterator"


def start_measuring(phantom: settings.Phantom, describe_updates: Callable[[], dict[str, Any]]) -> Measured:
    """Start the measurement that `matex plan` requested.

    Args:
        phantom: the value of the setting `plan`. `ranks`: 0 in a real rank. `steps`: the number of updates to make.
        describe_updates: returns which parts of the optimizers' updates could be sharded.
    """
    records.set_recording(records.GRADIENTS, _MAX_EVENTS)
    measured = Measured(phantom, describe_updates)
    atexit.register(measured.store_steps)
    threading.Thread(target=measured.watch_updates, name="matex plan", daemon=True).start()
    return measured


def read_resident_bytes(name: str) -> int:
    """Resident memory in bytes: VmRSS (present) or VmHWM (peak)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    return 0


class Measured:
    """The measurements of this process. `listen_for` of `monitor.listeners` connects the `note_` methods to events."""

    def __init__(self, phantom: settings.Phantom, describe_updates: Callable[[], dict[str, Any]]):
        self.phantom, self._describe_updates = phantom, describe_updates
        self.base_bytes = 0  # resident memory before the first update
        # Seconds of `time.monotonic` and of `time.process_time` at the end of the first update.
        self._start: tuple[float, float] | None = None
        self._is_late = False  # `LIMIT` has passed
        self._step_ends: list[int] = []  # nanoseconds, of steps that changed weights; also of replicated steps
        self._data: Data | None = None  # of the last training step
        self._has_enough = threading.Event()  # tells the training thread of enough updates: it measures the input
        self._is_measuring_input = threading.Event()
        self.input: InputCost | None = None
        self._lock = threading.Lock()
        self._is_stored = False
        self._process = os.getpid()  # a forked child inherits the call at exit, and stores nothing

    def note_step(self, plan: Any) -> None:
        """A step has changed weights. After enough steps the input is measured, and the process ends."""
        self._step_ends.append(records.read_clock())
        if self._data is not None and self._has_enough.is_set():
            self._is_measuring_input.set()
            self.input = measure_input(self._data)
            self.store_steps()
            os._exit(0)

    def note_pass(self, dataset: Any, iterator: Any) -> None:
        """Eager code begins to iterate over a dataset: note it for `note_batch`."""
        tags.set_tag(iterator._iterator_resource, _DATASET, dataset)

    def note_batch(self, plan: Any, seconds: float, handle: Any) -> None:
        """A step has taken its batch from the iterator with this handle: note how to take more (`measure_input`)."""
        dataset, take = tags.get_tag(handle, _DATASET), plan.inputs.take_batch
        # The first function goes on in this pass; the second takes from the iterator of a later pass.
        self._data = Data(dataset, lambda: take(handle), lambda iterator: take(iterator._iterator_resource))

    def note_batch_of_loop(self, iterator: Any, is_over: bool) -> None:
        """A loop in eager code has taken a batch from an iterator: note how to take more."""
        dataset = tags.get_tag(iterator._iterator_resource, _DATASET)
        self._data = Data(dataset, lambda: next(iterator, None), lambda other_iterator: next(other_iterator, None))

    def watch_updates(self) -> None:
        """Wait for enough updates or steps, or until `LIMIT`, then end the process. Runs on a thread of its own.

        Enough updates are `phantom.steps`, or `_MIN_UPDATES` at the time limit.
        """
        max_seconds, start = _PHANTOM_SECONDS if self.phantom.ranks else _REAL_SECONDS, time.monotonic()
        with real_files.use_real_files():
            while True:
                time.sleep(0.02)
                updates = ops.count_updates()
                if updates == 0:
                    self.base_bytes = read_resident_bytes("VmRSS")
                elif self._start is None:
                    self._start = time.monotonic(), time.process_time()
                is_over_time = self._start is not None and time.monotonic() - self._start[0] > max_seconds
                self._is_late = time.monotonic() - start > LIMIT
                # Replicated steps, which every rank computes whole, sum no gradients: they count as no updates.
                has_enough_replicated = not updates and len(self._step_ends) >= self.phantom.steps
                has_enough = updates >= self.phantom.steps or (is_over_time and updates >= _MIN_UPDATES)
                if self._is_late or has_enough_replicated or has_enough:
                    break
            if has_enough and self.phantom.ranks and self._data is not None:
                self._has_enough.set()  # `note_step` of the next step measures the input
                if self._is_measuring_input.wait(_INPUT_SECONDS):
                    # The training thread ends the process, unless its measurement is still running at the limit.
                    time.sleep(max(0.0, start + LIMIT - time.monotonic()))
        self.store_steps()
        os._exit(0)

    def store_steps(self) -> None:
        """Write the measurements to copy-K.npz in the folder, once; K is the number of the copy, or of a real rank.

        Its keys: events and labels (`records`); base and peak (resident bytes, before the first update and the most);
        updates (their number); cores (busy since the first update); overlaps (gradients became ready one by one);
        called (`_step_ends`); has_tensorflow, is_late; and as JSON update, epoch and input.
        """
        with self._lock:
            if self._is_stored or os.getpid() != self._process:
                return
            self._is_stored = True
            me = world.get_world()
            name = f"copy-{self.phantom.copy if me.is_phantom else me.rank}.npz"
            events, _ = records.read_events()
            with real_files.use_real_files():  # `matex plan` reads the file
                path = Path(self.phantom.folder, name)
                np.savez(
                    path.with_suffix(".part.npz"),
                    events=events, labels=np.array(records.read_event_labels(), dtype=str),
                    base=self.base_bytes, peak=read_resident_bytes("VmHWM"), updates=ops.count_updates(),
                    has_tensorflow="tensorflow" in sys.modules, overlaps=bool(np.any(events["activity"] == _READY)),
                    update=json.dumps(self._describe_updates()), cores=self._count_cores(),
                    epoch=json.dumps(epochs.describe_epoch()), is_late=self._is_late,
                    called=np.array(self._step_ends, np.int64),
                    input=json.dumps(None if self.input is None else asdict(self.input)),
                )  # fmt: skip
                os.replace(path.with_suffix(".part.npz"), path)

    def _count_cores(self) -> float:
        """The number of cores that this process has kept busy since its first update; NaN if the time is too short."""
        start, cpu_before = self._start or (time.monotonic(), 0.0)
        seconds = time.monotonic() - start
        return (time.process_time() - cpu_before) / seconds if seconds > _MIN_SECONDS else math.nan
