"""The rows of all ranks, from those of each."""

from __future__ import annotations

from typing import Any

from matex_tf import ops
from matex_tf.world import world

CAST = {"int8": "int32", "int16": "int32", "uint16": "int32", "uint32": "int64"}
"""Types that rows are gathered in, where not in their own."""


def gather_rows(mine: Any, name: str, numbers: Any = None) -> Any:
    """The ranks' rows one below the other. Collective; eager or in a graph.

    `numbers` are those of the step, where `mine` is made of its slice: each rank has as many rows of it for each row of
    the slice.
    """
    import tensorflow as tf

    between = CAST.get(mine.dtype.name)
    made = tf.cast(ops.allgather(mine if between is None else tf.cast(mine, between), name=name), mine.dtype)
    if numbers is None or not world.get_world().is_phantom:
        return made
    # The ranks that are not there give copies of rank 0's rows, though its slice may be longer by one than theirs.
    share, *_, of_rows = tf.unstack(tf.convert_to_tensor(numbers, tf.float64))
    whole = tf.math.divide_no_nan(tf.cast(tf.shape(mine)[0], tf.float64), share)
    return made[: tf.where(of_rows > 0, tf.cast(tf.round(whole), tf.int32), tf.shape(made)[0])]
