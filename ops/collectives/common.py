"""Common code of the collectives: checks of arguments, turns in v1 graphs, and helpers for gradients.

Each rank computes its own loss. The gradients of collectives are the gradients of the sum of these losses: the gradient
with respect to a tensor that a rank passed to a collective has the contributions of all ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from matex_tf import arguments
from matex_tf.lazy import tf

from ..library import on_load

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool")

_NO_UPDATE = -1.0  # passed in place of the rows of the global batch (`sequence/mismatch.h`)
_turns = itertools.count()


def make_dense_tensor(function: str, value: Any) -> Any:
    """`value` as a dense tensor of one of `DTYPES`. Raises TypeError or ValueError for the public `function`."""
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        raise TypeError(f"{function}: expected a dense tensor, not a {type(value).__name__}")
    tensor = make_tensor(function, value)
    if tensor.dtype.name not in DTYPES:
        raise TypeError(f"{function}: expected a tensor of {', '.join(DTYPES)}, not of {tensor.dtype.name}")
    return tensor


def make_tensor(function: str, value: Any, dtype: Any = None) -> Any:
    """`value` as a tensor. Raises TypeError or ValueError for the public `function`."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{function}: expected an array without a mask, which would be lost; fill it: x.filled(...)")
    try:
        return tf.convert_to_tensor(value, dtype)
    except (TypeError, ValueError) as error:
        error_type = TypeError if isinstance(error, TypeError) else ValueError
        raise error_type(
            f"{function}: expected a tensor or what can be made one; given {arguments.describe_value(value)}: {error}"
        ) from error


def make_turn() -> int:
    """The turn of the op that is created next.

    In a v1 graph, and in functions of such a graph, turns number the collectives, and all ranks run them in the order
    of turns. Elsewhere the turn is -1: collectives run in the order of their creation (`ops/order.py`).
    """
    with tf.init_scope():  # outside of all functions
        return -1 if tf.executing_eagerly() else next(_turns)


def make_weight(weight: Any, rows: Any = None) -> Any:
    """The `weight` argument of `reduce_gradients`, a float64 vector of two elements.

    Args:
        weight: this rank's weight, a scalar number or bool.
        rows: the rows of the global batch, a scalar integer; None for a sum that is no update.
    """
    batch_rows = tf.constant(_NO_UPDATE, tf.float64) if rows is None else tf.cast(rows, tf.float64)
    return tf.stack([tf.cast(weight, tf.float64), batch_rows])


def scale(tensors: Sequence[Any], weight: Any) -> list[Any]:
    """Each tensor times `weight`, a scalar, or the vector (weight, rows of the batch) of `make_weight`. A weight of 0
    gives zeros, even for NaN and infinity.
    """
    factor = weight if weight.shape.rank == 0 else weight[0]
    is_zero = tf.equal(factor, 0)  # in a v1 graph, == compares the tensors' identity
    return [tf.where(is_zero, tf.zeros_like(tensor), tensor * tf.cast(factor, tensor.dtype)) for tensor in tensors]


def name_gradient(op: Any) -> str:
    """The place, for messages, of a collective that is part of the gradient of `op`."""
    place = op.get_attr("place").decode()
    return f"the gradient of {place}" if place else "a gradient"


def register_gradient(op_type: str, compute_gradient: Callable[..., Any]) -> None:
    """Register the function that computes the gradient of ops of this type, once TensorFlow has loaded the ops."""

    def register() -> None:
        tf.RegisterGradient(op_type)(compute_gradient)

    on_load.append(register)


def add_order_gradient(op: Any, gradient: Any) -> Any:
    """The gradients of the inputs of `op`: `gradient` for the first, None for the order handle, if there is one."""
    return gradient if len(op.inputs) == 1 else [gradient, *[None] * (len(op.inputs) - 1)]
