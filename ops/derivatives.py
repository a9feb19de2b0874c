"""The gradients of the ops, registered with TensorFlow when the library is loaded.

The scalar that is differentiated is taken to be the sum of the ranks' own scalars; so the gradient with respect to a
tensor that one rank put into a collective is collected from all ranks.
"""

from __future__ import annotations

from typing import Any

from matex_tf.world import world

from . import collectives
from .library import on_load


def register() -> None:
    """Registers them; once in a process."""
    import tensorflow as tf

    tf.RegisterGradient("MatexAllreduce")(_allreduce)
    tf.RegisterGradient("MatexBroadcast")(_broadcast)
    tf.RegisterGradient("MatexAllgather")(_allgather)
    tf.RegisterGradient("MatexReduceGradients")(_reduce_gradients)
    tf.RegisterGradient("MatexHandOverGradient")(_hand_over_gradient)


def _name(op: Any) -> str:
    place = op.get_attr("place").decode()
    return f"the gradient of {place}" if place else "a gradient"


def _with_order(op: Any, gradient: Any) -> Any:
    """A gradient for the first input of `op` and none for the handle that orders it, where it has one."""
    return gradient if len(op.inputs) == 1 else [gradient, *[None] * (len(op.inputs) - 1)]


def _allreduce(op: Any, gradient: Any) -> Any:
    import tensorflow as tf

    reduction = op.get_attr("reduction").decode()
    if reduction in ("sum", "mean"):
        return _with_order(op, collectives.allreduce(gradient, reduction, _name(op)))
    # Ranks whose value is the extreme one share the gradient equally, as tf.reduce_max does with equal elements.
    mine = tf.cast(tf.equal(op.inputs[0], op.outputs[0]), gradient.dtype)
    ranks = collectives.allreduce(mine, "sum", _name(op))
    return _with_order(op, tf.math.divide_no_nan(mine, ranks) * collectives.allreduce(gradient, "sum", _name(op)))


def _broadcast(op: Any, gradient: Any) -> Any:
    import tensorflow as tf

    summed = collectives.allreduce(gradient, "sum", _name(op))
    # The same ops on all ranks: by what a gradient is made of, its update is announced (announcing.py).
    is_root = tf.constant(world.current().rank == op.get_attr("root"))
    return _with_order(op, tf.where(is_root, summed, tf.zeros_like(summed)))


def _allgather(op: Any, gradient: Any, _rows: Any) -> Any:
    import tensorflow as tf

    summed = collectives.allreduce(gradient, "sum", _name(op))
    rank = world.current().rank
    rows = op.outputs[1]
    start = tf.reduce_sum(rows[:rank])
    return _with_order(op, tf.reshape(summed[start : start + rows[rank]], tf.shape(op.inputs[0])))


def _reduce_gradients(op: Any, *gradients: Any) -> list[Any]:
    import tensorflow as tf

    names = [name.decode() for name in op.get_attr("names")]
    weight = op.inputs[len(names)]
    weight = weight if weight.shape.rank == 0 else weight[0]
    summed = collectives.reduce_gradients(gradients, names, 1.0, _name(op))
    weighed = [tf.where(weight == 0, tf.zeros_like(one), one * tf.cast(weight, one.dtype)) for one in summed]
    return [*weighed, *[None] * (len(op.inputs) - len(names))]


def _hand_over_gradient(op: Any, gradient: Any) -> list[Any]:
    import tensorflow as tf

    announced = op.inputs[1].op
    name = announced.get_attr("names")[op.get_attr("entry")].decode()
    weight = announced.inputs[0]
    weight = weight if weight.shape.rank == 0 else weight[0]
    (summed,) = collectives.reduce_inline([gradient], [name], tf.ones([], tf.float64), _name(announced))
    return [tf.where(weight == 0, tf.zeros_like(summed), summed * tf.cast(weight, summed.dtype)), None]


on_load.append(register)
