"""What all collectives do with their arguments and gradients.

The scalar that is differentiated is taken to be the sum of the ranks' own scalars; so the gradient with respect to a
tensor that one rank put into a collective is collected from all ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf import arguments

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool")

_turns = itertools.count()


def make_dense_tensor(function: str, value: Any) -> Any:
    import tensorflow as tf

    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        raise TypeError(f"{function}: expected a dense tensor, not a {type(value).__name__}")
    tensor = make_tensor(function, value)
    if tensor.dtype.name not in DTYPES:
        raise TypeError(f"{function}: expected a tensor of {', '.join(DTYPES)}, not of {tensor.dtype.name}")
    return tensor


def make_tensor(function: str, value: Any, dtype: Any = None) -> Any:
    import tensorflow as tf

    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{function}: expected an array without a mask, which would be lost; fill it: x.filled(...)")
    try:
        return tf.convert_to_tensor(value, dtype)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"{function}: expected a tensor or what can be made one; given {arguments.describe_value(value)}: {error}"
        ) from error


def take_turn() -> int:
    """The next turn for an op in a v1 graph; elsewhere ops run in the order in which they were made, and have none."""
    import tensorflow as tf
    from tensorflow.python.framework import ops

    return -1 if tf.executing_eagerly() or ops.inside_function() else next(_turns)


def scale(tensors: Sequence[Any], weight: Any) -> list[Any]:
    """Each times `weight`, or the first of its two numbers. A weight of 0 gives zeros, whatever they hold."""
    import tensorflow as tf

    factor = weight if weight.shape.rank == 0 else weight[0]
    is_none = tf.equal(factor, 0)  # in a v1 graph == asks whether both are the same tensor
    return [tf.where(is_none, tf.zeros_like(one), one * tf.cast(factor, one.dtype)) for one in tensors]


def name_gradient(op: Any) -> str:
    place = op.get_attr("place").decode()
    return f"the gradient of {place}" if place else "a gradient"


def add_order_gradient(op: Any, gradient: Any) -> Any:
    """A gradient for the first input of `op` and none for the handle that orders it, where it has one."""
    return gradient if len(op.inputs) == 1 else [gradient, *[None] * (len(op.inputs) - 1)]
