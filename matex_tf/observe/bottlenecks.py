"""What the time of training steps is spent on: adding up gradients, waiting for the input; said where it is much."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from matex_tf import ops
from matex_tf.runtime import notes
from matex_tf.sharding import step_weight
from matex_tf.world import world

_MUCH = 0.5
_ENOUGH_STEPS, _ENOUGH_SECONDS = 20, 2.0

_said: set[str] = set()
_waited = 0.0
_waited_in_functions: Any = None  # a variable, float64


def time_pull(pull: Callable[[], Any]) -> Any:
    """The element that `pull` takes out of an input pipeline. How long that takes counts as waiting for it.

    In a function it counts each time that the function runs, unless the script wants deterministic ops.
    """
    import tensorflow as tf

    if not tf.executing_eagerly():
        return _time_in_function(pull)
    global _waited
    start = time.perf_counter()
    try:
        return pull()
    finally:
        _waited += time.perf_counter() - start


def _time_in_function(pull: Callable[[], Any]) -> Any:
    global _waited_in_functions
    import tensorflow as tf
    from tensorflow.python.framework import config

    if config.is_op_determinism_enabled():
        return pull()  # the time is an op that is refused then
    if _waited_in_functions is None:
        _waited_in_functions = step_weight.make_hidden_variable(0.0, tf.float64, "matex_tf_waited")
    start = tf.timestamp()
    with tf.control_dependencies([start]):
        element = pull()
    parts = tf.nest.flatten(element, expand_composites=True)
    with tf.control_dependencies([part for part in parts if part is not None]):
        took = tf.timestamp() - start
    with tf.control_dependencies([_waited_in_functions.assign_add(took)]):
        parts = [part if part is None else tf.identity(part) for part in parts]
    return tf.nest.pack_sequence_as(element, parts, expand_composites=True)


def get_waited_seconds() -> float:
    """Seconds that went into waiting for what `timed` was given."""
    return _waited + (0.0 if _waited_in_functions is None else float(_waited_in_functions.numpy()))


class Pace:
    """What goes into the steps of an epoch or a loop, without the first step, which compiles."""

    def __init__(self) -> None:
        self.steps = -1
        self.rows = 0  # of a batch of all ranks; 0 where it is not known
        self.whole_pipeline: str | None = None  # why every rank runs the whole pipeline; None where it is sharded
        self._begin = self._end = (0.0, 0.0)
        self._waited = 0.0

    def count_step(self) -> None:
        """A step is over."""
        self.steps += 1
        self._end = time.perf_counter(), ops.get_blocked_seconds()
        if self.steps == 0:
            self._begin, self._waited = self._end, get_waited_seconds()

    def judge_steps(self) -> None:
        """The steps are over: say, once in a run, what most of their time went into if that was no computation."""
        elapsed = self._end[0] - self._begin[0]
        if self.steps < _ENOUGH_STEPS or elapsed < _ENOUGH_SECONDS:
            return
        together = (self._end[1] - self._begin[1]) / elapsed
        waiting = (get_waited_seconds() - self._waited) / elapsed
        if together > _MUCH:
            of_rows = f", with some {max(self.rows // world.get_world().trainers, 1)} rows of each batch on each rank"
            _say_once(
                "together",
                f"{together:.0%} of the time of training steps goes into adding up gradients and waiting for the other "
                f"ranks{of_rows if self.rows else ''}. A larger batch, fewer ranks, or fewer ranks on each node would "
                "use them better",
            )
        if waiting > _MUCH and self.whole_pipeline is not None:
            _say_once(
                "waiting",
                f"{waiting:.0%} of the time of training steps goes into waiting for the input pipeline, which every "
                f"rank runs whole: {self.whole_pipeline}. Where ranks cannot share the work, `cache()` or a reader "
                "(matex_tf.readers.DataSet) may save it",
            )


def _say_once(what: str, text: str) -> None:
    """Once in a run: the figures differ from epoch to epoch."""
    if what not in _said:
        _said.add(what)
        notes.print_note(text)
