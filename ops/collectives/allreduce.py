"""The sum, mean, minimum or maximum over all ranks of each element."""

from __future__ import annotations

from typing import Any

from matex_tf import arguments
from matex_tf.world import world

from ..library import library, on_load
from ..order import in_order
from . import common

REDUCTIONS = ("mean", "sum", "min", "max")


def allreduce(tensor: Any, op: str = "mean", name: str | None = None) -> Any:
    """The mean, sum, minimum or maximum over all ranks of each element, on every rank.

    Args:
        tensor: a tensor or what can be made one, or a list or tuple of them; all ranks give the same shapes and dtypes:
            float16, bfloat16, float32, float64, int32, int64; uint8 too, and bool for "min" (and) and "max" (or).
        op: "mean", "sum", "min" or "max". The mean of integers is cut towards zero, as in `tf.reduce_mean`.
        name: what error messages call it.

    Returns:
        A tensor of the same shape and dtype; for a list or tuple, a list of them.

    Raises:
        TypeError, ValueError: an argument is none of the above.
        tf.errors.FailedPreconditionError: when run, if ranks are at different collectives.

    The gradient of a sum or mean is the sum or mean of the ranks' gradients; that of a minimum or maximum goes to the
    ranks that have it, in equal parts.
    """
    arguments.choice("allreduce", "op", op, REDUCTIONS)
    if isinstance(tensor, (list, tuple)):
        return [allreduce(one, op, name) for one in tensor]
    tensor = common.dense_tensor("allreduce", tensor)
    if tensor.dtype.is_bool and op in ("mean", "sum"):
        raise TypeError(f"allreduce: the {op} of bool tensors is not defined; cast to an integer or float type")
    import tensorflow as tf

    if not world.is_active():
        return tf.identity(tensor)
    if op == "mean" and tensor.dtype in (tf.int32, tf.uint8):
        # Their sum over many ranks may not fit.
        return tf.cast(_reduce(tf.cast(tensor, tf.int64), op, name), tensor.dtype)
    return _reduce(tensor, op, name)


def _reduce(tensor: Any, op: str, name: str | None) -> Any:
    return in_order(library().ops.matex_allreduce, x=tensor, reduction=op, place=name or "", turn=common.next_turn())


def _gradient(op: Any, gradient: Any) -> Any:
    import tensorflow as tf

    reduction = op.get_attr("reduction").decode()
    if reduction in ("sum", "mean"):
        return common.with_order(op, allreduce(gradient, reduction, common.gradient_name(op)))
    # Ranks whose value is the extreme one share the gradient equally, as tf.reduce_max does with equal elements.
    mine = tf.cast(tf.equal(op.inputs[0], op.outputs[0]), gradient.dtype)
    ranks = allreduce(mine, "sum", common.gradient_name(op))
    return common.with_order(
        op, tf.math.divide_no_nan(mine, ranks) * allreduce(gradient, "sum", common.gradient_name(op))
    )


def _register() -> None:
    import tensorflow as tf

    tf.RegisterGradient("MatexAllreduce")(_gradient)


on_load.append(_register)
