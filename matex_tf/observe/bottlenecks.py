"""Measures the fraction of training time that ranks spend on sums and on the input, and prints a note if it is large.

`monitor.listeners` registers these functions for events of training. They have all arguments of the event, also unused
ones. `monitor.sampler` records `read_waited_seconds`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from matex_tf import ops
from matex_tf.ops import records
from matex_tf.runtime import notes
from matex_tf.world import world

_THRESHOLD = 0.5  # a note is printed for a larger fraction of the time
_MIN_STEPS, _MIN_SECONDS = 20, 2.0  # the fraction of fewer steps or seconds is not judged

_printed: set[str] = set()
_waited_seconds = 0.0  # for batches, outside of a `tf.function`
_wanted_at = 0.0  # when eager code began to take its last batch
_waited_in_functions: Any = None  # for batches that a `tf.function` takes: a float64 variable of TensorFlow, seconds
_known_in_functions = 0.0  # its value at the end of the last step: other threads do not read the variable
_pace: Pace | None = None  # of the present epoch or loop


def time_pull(pull: Callable[[], list[Any]]) -> list[Any]:
    """Within a function: return the batch of `pull` as tensors, and count its time as waiting for the input.

    The time counts in every run of the function, unless the script requires deterministic ops.
    """
    global _waited_in_functions
    import tensorflow as tf
    from tensorflow.python.framework import config

    if config.is_op_determinism_enabled():
        return pull()  # timestamps are not deterministic, so TensorFlow refuses them
    if _waited_in_functions is None:
        with tf.init_scope():
            _waited_in_functions = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="matex_tf_waited")
    start = tf.timestamp()
    with tf.control_dependencies([start]):
        tensors = pull()
    with tf.control_dependencies(tensors):
        seconds = tf.timestamp() - start
    with tf.control_dependencies([_waited_in_functions.assign_add(seconds, read_value=False)]):
        return [tf.identity(tensor) for tensor in tensors]


def want_batch(iterator: Any) -> None:
    """Called when eager code begins to take a batch."""
    global _wanted_at
    _wanted_at = time.perf_counter()


def give_batch(iterator: Any, is_over: bool) -> None:
    """Called when eager code has the batch. The end of the data ends an epoch of a loop."""
    global _waited_seconds
    _waited_seconds += time.perf_counter() - _wanted_at
    if is_over:
        end_epoch()


def take_batch(plan: Any, seconds: float, handle: Any) -> None:
    """Called when the batch of a step was taken before the step's call."""
    global _waited_seconds
    _waited_seconds += seconds


def end_step(plan: Any) -> None:
    """Called when a call of a step has ended."""
    global _pace, _known_in_functions
    if records.is_on() and _waited_in_functions is not None:  # only the sampler needs the value at each step
        _known_in_functions = float(_waited_in_functions.numpy())
    if plan.trained:
        _pace = _pace or Pace()
        _pace.count_step()


def end_epoch(*_: Any) -> None:
    """Called at the end of an epoch of `fit` or of a loop."""
    global _pace
    if _pace is not None:
        _pace.judge_steps()
    _pace = None


def get_waited_seconds() -> float:
    """Seconds spent waiting for batches."""
    return _waited_seconds + (0.0 if _waited_in_functions is None else float(_waited_in_functions.numpy()))


def read_waited_seconds() -> float:
    """`get_waited_seconds` for the sampler's thread, as of the last step: that thread must not read a variable."""
    return _waited_seconds + _known_in_functions


class Pace:
    """Measures the steps of an epoch or a loop, except for the first step, which compiles."""

    def __init__(self) -> None:
        self.steps = -1  # 0 after the first step
        self._begin = self._end = (0.0, 0.0)  # `time.perf_counter`, and seconds blocked in collectives by then
        self._waited_before, self._rows_before = 0.0, 0

    def count_step(self) -> None:
        self.steps += 1
        self._end = time.perf_counter(), ops.get_blocked_seconds()
        if self.steps == 0:
            self._begin = self._end
            self._waited_before, self._rows_before = get_waited_seconds(), ops.count_global_rows()

    def judge_steps(self) -> None:
        """Called at the end of the steps: print a note, once in a run, if most of their time was not computation."""
        elapsed = self._end[0] - self._begin[0]
        if self.steps < _MIN_STEPS or elapsed < _MIN_SECONDS:
            return
        share_of_sums = (self._end[1] - self._begin[1]) / elapsed
        share_of_input = (get_waited_seconds() - self._waited_before) / elapsed
        rows = (ops.count_global_rows() - self._rows_before) // self.steps
        if share_of_sums > _THRESHOLD:
            rows_text = f", with some {max(rows // world.get_world().trainers, 1)} rows of each batch on each rank"
            _report_once(
                "together",
                f"{share_of_sums:.0%} of the time of training steps is spent on sums of gradients and on waiting for "
                f"the other ranks{rows_text if rows else ''}. A larger batch, fewer ranks, or fewer ranks on each node "
                "would use them better",
            )
        if share_of_input > _THRESHOLD:
            _report_once(
                "waiting",
                f"{share_of_input:.0%} of the time of training steps is spent on waiting for the input pipeline. "
                "MATEX_EXPLAIN=1 shows the parts that every rank runs completely; `cache()` or a reader "
                "(matex_tf.readers.DataSet) may save time",
            )


def _report_once(key: str, text: str) -> None:
    """Print the note `key` once in a run, although the numbers in its text differ from epoch to epoch."""
    if key not in _printed:
        _printed.add(key)
        notes.print_note(text)
