"""Measures the cost of the input of training for a rank: core seconds and bytes of a batch, without a step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matex_tf.sharding.slice_bounds import list_pipeline

_MOST, _SECONDS = 8, 3.0
"""Limits of the number of batches and of the seconds."""
_LOOK, _IDLE, _LOOKS = 0.01, 0.1, 2
"""Seconds between two samples of CPU time; the process is idle below this share of a core, in this many samples."""


@dataclass(frozen=True)
class InputCost:
    """The cost of a batch for this rank: core seconds, and bytes read by system calls."""

    seconds: float
    bytes: float


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
        """Begin another pass."""
        iterator = iter(self.dataset)
        self.take = lambda: self._take_from(iterator)


def measure_input(data: Data) -> InputCost | None:
    """The mean cost of batches, including prefetching; None if there are none.

    A pipeline with prefetching is full whenever this process is idle. From one idle moment to the next, with one batch
    taken between them, it processes exactly one batch, unless the pass ends soon. Then the next pass is measured. If it
    ends as soon, it is measured from its very beginning: a whole pass processes exactly its batches.

    A shuffle that holds a whole pass processes all rows before the first batch, and none later. Then the cost of the
    first batch of the next pass is divided among the batches of the pass.
    """
    cost, is_over = _measure_batches(data, False)
    if is_over and data.dataset is not None:
        cost, _ = _measure_batches(data, True)
    elif cost is not None and (count := _count_batches_of_held_pass(data.dataset)):
        began = _count_used()
        data.start_over()
        data.take()
        _await_idle()
        seconds, read_bytes = (used - before for used, before in zip(_count_used(), began))
        cost = InputCost(cost.seconds + seconds / count, cost.bytes + read_bytes / count)
    return cost


def _count_batches_of_held_pass(dataset: Any) -> int:
    """The number of batches of a pass if a shuffle of the pipeline holds all of its rows; otherwise, or unknown, 0."""
    shuffles = [step for step in list_pipeline(dataset) if type(step).__name__ == "_ShuffleDataset"]
    holds_pass = any(0 <= step._input_dataset.cardinality() <= step._buffer_size for step in shuffles)
    return max(0, int(dataset.cardinality())) if holds_pass else 0


def _measure_batches(data: Data, starts_over: bool) -> tuple[InputCost | None, bool]:
    """The mean cost of the next batches, and whether the pass has ended."""
    began = _count_used()
    if starts_over:
        data.start_over()
    _await_idle()
    full, until, count, is_over = _count_used(), time.monotonic() + _SECONDS, 0, False
    while count < _MOST and time.monotonic() < until and not is_over:
        is_over = data.take() is None
        count += not is_over
        _await_idle()
    if not count:
        return None, is_over
    before = began if starts_over and is_over else full
    return InputCost(*((used - used_before) / count for used, used_before in zip(_count_used(), before))), is_over


def _count_used() -> tuple[float, int]:
    return time.process_time(), count_read_bytes()


def _await_idle() -> None:
    """Wait until this process is idle, within a time limit."""
    until, idle = time.monotonic() + _SECONDS, 0
    while idle < _LOOKS and time.monotonic() < until:
        cpu, began = time.process_time(), time.monotonic()
        time.sleep(_LOOK)
        is_idle = time.process_time() - cpu < _IDLE * (time.monotonic() - began)
        idle = idle + 1 if is_idle else 0


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
    return int(text.split(None, 2)[1])
