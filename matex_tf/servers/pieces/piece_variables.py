"""Variables that have a piece of another, and what puts the pieces of all ranks together."""

from __future__ import annotations

from typing import Any

from matex_tf import ops
from matex_tf.servers.variable_swap import find_inner


def make_variable(value: Any, **more: Any) -> Any:
    """A variable of ours, which may be made whenever a function is traced."""
    from tensorflow.python.ops import resource_variable_ops

    return resource_variable_ops.ResourceVariable(value, trainable=False, **more)


def make_room(variable: Any) -> Any:
    """A variable for a piece, of which functions are not to know the length, with the identity of the whole one."""
    import tensorflow as tf

    whole = find_inner(variable)
    piece = make_variable(tf.zeros([0], whole.dtype), shape=[None], name=whole.name.split(":")[0])
    piece._unique_id = whole._unique_id
    return piece


def gather_pieces(piece: Any, name: str) -> Any:
    """All ranks' pieces, one after the other. Collective."""

    whole = ops.allgather(piece, name)
    return whole
