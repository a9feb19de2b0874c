"""Gradients that stay a rank's own: what its rows alone say of the gradient of the whole batch.

A gradient in a graph is this rank's part of a sum over the ranks. As often as there are ranks, it is a guess at that
sum: the mean of all ranks' guesses is the sum. In a step that every rank computes whole it is the whole already.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from matex_tf.analysis import declarations
from matex_tf.analysis.placement import SAME
from matex_tf.sharding import step_weight
from matex_tf.world import world

_state = threading.local()


@contextlib.contextmanager
def keep_local(variables: list[Any]) -> Iterator[None]:
    """Within it gradients in the graph being built, not in functions that it calls, are not put together.

    A function may be called from elsewhere, too. `variables` gets those of TensorFlow that they are gradients of.
    """
    import tensorflow as tf

    before = getattr(_state, "keeping", None)
    _state.keeping = tf.compat.v1.get_default_graph(), variables
    try:
        yield
    finally:
        _state.keeping = before


def are_kept() -> bool:
    """Whether gradients in the graph being built stay each rank's own."""
    import tensorflow as tf

    keeping = getattr(_state, "keeping", None)
    return keeping is not None and not tf.executing_eagerly() and keeping[0] is tf.compat.v1.get_default_graph()


def guess_whole(gradient: Any, variable: Any) -> Any:
    """This rank's guess at the whole of a gradient, a tensor or `tf.IndexedSlices`, of which it has a part."""
    import tensorflow as tf

    _, variables = _state.keeping
    if all(variable is not known for known in variables):
        variables.append(variable)
    _, has_rows, _, of_rows = tf.unstack(step_weight.read_numbers())
    times = tf.where(of_rows > 0, has_rows * world.get_world().size, 1.0)
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else tf.convert_to_tensor(gradient)
    mine = tf.where(times > 0, values * tf.cast(times, values.dtype), tf.zeros_like(values))
    declarations.declare_placement(mine, SAME)  # whatever comes of it is what this rank takes for the same
    if not isinstance(gradient, tf.IndexedSlices):
        return mine
    indices = tf.identity(gradient.indices)
    declarations.declare_placement(indices, SAME)
    return tf.IndexedSlices(mine, indices, gradient.dense_shape)
