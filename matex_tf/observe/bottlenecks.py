"""What the time of training steps is spent on: adding up gradients, waiting for the input; said where it is much.

Its functions listen to events of training.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from matex_tf import ops
from matex_tf.ops import records
from matex_tf.runtime import notes
from matex_tf.world import world

_MUCH = 0.5
_ENOUGH_STEPS, _ENOUGH_SECONDS = 20, 2.0

_said: set[str] = set()
_waited = _wanted = 0.0
_waited_in_functions: Any = None  # a variable, float64
_told_in_functions = 0.0  # as far as it was read where steps end
_pace: Pace | None = None


def time_pull(pull: Callable[[], list[Any]]) -> list[Any]:
    """In a function, the tensors of the batch that `pull` takes. How long that takes counts as waiting for the input.

    It counts each time that the function runs, unless the script wants deterministic ops.
    """
    global _waited_in_functions
    import tensorflow as tf
    from tensorflow.python.framework import config

    if config.is_op_determinism_enabled():
        return pull()  # the time is an op that is refused then
    if _waited_in_functions is None:
        with tf.init_scope():
            _waited_in_functions = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="matex_tf_waited")
    start = tf.timestamp()
    with tf.control_dependencies([start]):
        parts = pull()
    with tf.control_dependencies(parts):
        took = tf.timestamp() - start
    with tf.control_dependencies([_waited_in_functions.assign_add(took, read_value=False)]):
        return [tf.identity(part) for part in parts]


def want_batch(iterator: Any) -> None:
    """Eager code takes a batch."""
    global _wanted
    _wanted = time.perf_counter()


def give_batch(iterator: Any, is_over: bool) -> None:
    """It has the batch; the end of the data is the end of an epoch of a loop."""
    global _waited
    _waited += time.perf_counter() - _wanted
    if is_over:
        end_epoch()


def take_batch(plan: Any, seconds: float, take: Any) -> None:
    """The batch of a step was taken before its call."""
    global _waited
    _waited += seconds


def end_step(plan: Any) -> None:
    """A call of a step has run."""
    global _pace, _told_in_functions
    if records.is_on() and _waited_in_functions is not None:
        _told_in_functions = float(_waited_in_functions.numpy())
    if plan.trained:
        _pace = _pace or Pace()
        _pace.count_step()


def end_epoch(*_: Any) -> None:
    global _pace
    if _pace is not None:
        _pace.judge_steps()
    _pace = None


def get_waited_seconds() -> float:
    """Seconds that went into waiting for batches."""
    return _waited + (0.0 if _waited_in_functions is None else float(_waited_in_functions.numpy()))


def read_waited_seconds() -> float:
    """The same for another thread, as of the last step; within functions only where something is recorded."""
    return _waited + _told_in_functions


class Pace:
    """What goes into the steps of an epoch or a loop, without the first step, which compiles."""

    def __init__(self) -> None:
        self.steps = -1
        self._begin = self._end = (0.0, 0.0)
        self._waited, self._rows = 0.0, 0

    def count_step(self) -> None:
        """A step is over."""
        self.steps += 1
        self._end = time.perf_counter(), ops.get_blocked_seconds()
        if self.steps == 0:
            self._begin, self._waited, self._rows = self._end, get_waited_seconds(), ops.count_global_rows()

    def judge_steps(self) -> None:
        """The steps are over: say, once in a run, what most of their time went into if that was no computation."""
        elapsed = self._end[0] - self._begin[0]
        if self.steps < _ENOUGH_STEPS or elapsed < _ENOUGH_SECONDS:
            return
        together = (self._end[1] - self._begin[1]) / elapsed
        waiting = (get_waited_seconds() - self._waited) / elapsed
        rows = (ops.count_global_rows() - self._rows) // self.steps
        if together > _MUCH:
            of_rows = f", with some {max(rows // world.get_world().trainers, 1)} rows of each batch on each rank"
            _say_once(
                "together",
                f"{together:.0%} of the time of training steps goes into adding up gradients and waiting for the other "
                f"ranks{of_rows if rows else ''}. A larger batch, fewer ranks, or fewer ranks on each node would "
                "use them better",
            )
        if waiting > _MUCH:
            _say_once(
                "waiting",
                f"{waiting:.0%} of the time of training steps goes into waiting for the input pipeline. "
                "MATEX_EXPLAIN=1 says what every rank runs whole; `cache()` or a reader (matex_tf.readers.DataSet) may "
                "save that",
            )


def _say_once(what: str, text: str) -> None:
    """Once in a run: the figures differ from epoch to epoch."""
    if what not in _said:
        _said.add(what)
        notes.print_note(text)
