"""Measures the cost of the input of training for `matex plan`: core seconds and bytes of a batch, without a step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matex_tf.sharding.slice_bounds import list_pipeline

_MAX_BATCHES, _MAX_SECONDS = 8, 3.0
"""Limits of a measurement."""
_SAMPLE_SECONDS, _IDLE_CORES, _IDLE_SAMPLES = 0.01, 0.1, 2
"""The process is idle if it uses less than `_IDLE_CORES` in so many consecutive samples of so many seconds."""


@dataclass(frozen=True)
class InputCost:
    """The cost of a batch for this rank."""

    seconds: float  # core seconds: CPU time of all threads
    bytes: float  # read by system calls


class Data:
    """The data of training, in a pass over them.

    Args:
        dataset: the data, to begin another pass; None if that is impossible.
        take: takes the next batch of this pass; None at its end.
        take_from: takes the next batch of an iterator of `dataset`; None at its end.
    """

    def __init__(self, dataset: Any, take: Callable[[], Any], take_from: Callable[[Any], Any]):
        self.dataset, self.take, self._take_from = dataset, take, take_from

    def start_over(self) -> None:
        """Begin another pass; `take` then takes its batches."""
        iterator = iter(self.dataset)
        self.take = lambda: self._take_from(iterator)


def measure_input(data: Data) -> InputCost | None:
    """The mean cost of batches, including prefetching; None if there are none.

    A pipeline with prefetching works until its buffers are full; then this process is idle. If a batch is taken, the
    pipeline processes exactly one batch until the process is idle again. There are two exceptions:

    1. Near the end of a pass it processes none, because nothing is left to prefetch. So if the pass ends during the
       measurement, the next pass is measured. If this ends, too, all of its cost is divided by its batches.
    2. A shuffle that holds a whole pass processes all rows before the first batch, and none later. So the cost up to
       the first batch of the next pass, divided by the batches of a pass, is added to the cost of a batch.
    """
    cost, is_over = _measure_batches(data)
    if is_over and data.dataset is not None:
        used_before_pass = _measure_used()
        data.start_over()
        cost, _ = _measure_batches(data, used_before_pass)
    elif cost is not None and (pass_batches := _count_batches_of_held_pass(data.dataset)):
        used_before = _measure_used()
        data.start_over()
        data.take()
        _await_idle()
        used = _measure_used()
        seconds, read_bytes = used.seconds - used_before.seconds, used.bytes - used_before.bytes
        cost = InputCost(cost.seconds + seconds / pass_batches, cost.bytes + read_bytes / pass_batches)
    return cost


def _count_batches_of_held_pass(dataset: Any) -> int:
    """The number of batches of a pass if a shuffle of the pipeline holds all of its rows; otherwise, or unknown, 0."""
    shuffles = [step for step in list_pipeline(dataset) if type(step).__name__ == "_ShuffleDataset"]
    holds_pass = any(0 <= step._input_dataset.cardinality() <= step._buffer_size for step in shuffles)
    return max(0, int(dataset.cardinality())) if holds_pass else 0


def _measure_batches(data: Data, used_before_pass: InputCost | None = None) -> tuple[InputCost | None, bool]:
    """The mean cost of the next batches, and whether the pass has ended.

    Args:
        used_before_pass: the resources used before the pass began; None if it had begun earlier.
    """
    _await_idle()
    used_before, deadline, count, is_over = _measure_used(), time.monotonic() + _MAX_SECONDS, 0, False
    while count < _MAX_BATCHES and time.monotonic() < deadline and not is_over:
        is_over = data.take() is None
        if not is_over:
            count += 1
        _await_idle()
    if not count:
        return None, is_over
    if is_over and used_before_pass is not None:
        used_before = used_before_pass
    used = _measure_used()
    return InputCost((used.seconds - used_before.seconds) / count, (used.bytes - used_before.bytes) / count), is_over


def _measure_used() -> InputCost:
    """The resources that this process has used in total since its start."""
    return InputCost(time.process_time(), count_read_bytes())


def _await_idle() -> None:
    """Wait until this process is idle, within a time limit."""
    deadline, idle_samples = time.monotonic() + _MAX_SECONDS, 0
    while idle_samples < _IDLE_SAMPLES and time.monotonic() < deadline:
        cpu_before, time_before = time.process_time(), time.monotonic()
        time.sleep(_SAMPLE_SECONDS)
        is_idle = time.process_time() - cpu_before < _IDLE_CORES * (time.monotonic() - time_before)
        idle_samples = idle_samples + 1 if is_idle else 0


def count_read_bytes() -> int:
    """Bytes that this process has read by system calls; 0 if the system does not count them."""
    try:
        return parse_read_bytes(Path("/proc/self/io").read_bytes())
    except OSError:
        return 0


def parse_read_bytes(text: bytes) -> int:
    """Parse `rchar` from /proc/PID/io: bytes that a process has read by system calls.

    Includes reads from the page cache, which `read_bytes` excludes; also pipes, and sockets if MPI reads them as files.
    Excludes memory-mapped files.
    """
    return int(text.split(None, 2)[1])  # the first line is "rchar: NUMBER"
