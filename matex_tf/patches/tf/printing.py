"""What a step in a graph prints or writes (`tf.print`, `tf.summary.scalar`): figures of the whole batch."""

from __future__ import annotations

from typing import Any

from matex_tf.analysis import graph_ops, interpreter
from matex_tf.gradients import recombine
from matex_tf.runtime.hooks import Table
from matex_tf.sharding import step_weight

HOOKS = Table()

_LOST = "a step in a graph shows figures of a rank's slice"


@HOOKS.replace("tensorflow", "summary.scalar compat.v2.summary.scalar", _LOST, optional=True)
def _wrap_scalar(original: Any) -> Any:
    def scalar(name, data, *args, **kwargs):
        return original(name, show_whole(data), *args, **kwargs)

    return scalar


@HOOKS.replace("tensorflow", "print", _LOST, optional=True)
def _wrap_print(original: Any) -> Any:
    def tf_print(*inputs, **kwargs):
        return original(*[show_whole(part) for part in inputs], **kwargs)

    return tf_print


def show_whole(value: Any) -> Any:
    """What a script shows of `value`; in a graph that trains, the ranks' parts of it are put together."""
    import tensorflow as tf

    if not isinstance(value, tf.Tensor) or hasattr(value, "numpy"):
        return value
    graph = tf.compat.v1.get_default_graph()
    if value.graph is not graph or step_weight.is_in_session_graph() or not graph_ops.is_training_step(graph):
        return value
    placement = interpreter.find_placement(value)
    if placement.is_same or not placement.can_be_whole:
        return value
    return recombine.make_whole([value], "what a step shows")[0]
