"""What orders our ops inside functions: each seems to write to a variable, so that they run as they were made."""

from __future__ import annotations

from typing import Any

_variables: dict[str, Any] = {}


def order_handles(line: str = "collectives") -> list[Any]:
    """The handle that an op of this line takes in a function, as a list; nothing elsewhere, where ops run in order."""
    import tensorflow as tf
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import resource_variable_ops

    if tf.executing_eagerly() or not ops.inside_function():
        return []
    if line not in _variables:
        # Not tf.Variable: a function that is being traced counts those that are made in it.
        with tf.init_scope(), tf.device("CPU:0"):
            _variables[line] = resource_variable_ops.ResourceVariable(0, trainable=False, name=f"matex_tf_{line}")
    return [_variables[line].handle]
