"""All-reduce: the element-wise sum, mean, minimum or maximum over all ranks."""

from __future__ import annotations

from typing import Any

from matex_tf import arguments
from matex_tf.world import world

from ..library import get_library
from ..order import make_in_order
from . import common

REDUCTIONS = ("mean", "sum", "min", "max")


def allreduce(tensor: Any, op: str = "mean", name: str | None = None) -> Any:
    """The element-wise mean, sum, minimum or maximum over all ranks, on every rank.

    Args:
        tensor: a tensor or a value that can be converted, or a list or tuple of them; all ranks pass the same shapes
            and dtypes: float16, bfloat16, float32, float64, int32, int64; also uint8, and bool for "min" (and) and
            "max" (or).
        op: "mean", "sum", "min" or "max". The mean of integers is truncated towards zero, as in `tf.reduce_mean`.
        name: the name in error messages.

    Returns:
        A tensor of the same shape and dtype; for a list or tuple, a list of tensors.

    Raises:
        TypeError, ValueError: an argument is not as above.
        tf.errors.FailedPreconditionError: when run, if ranks are at different collectives.

    The gradient of a sum or mean is the sum or mean of the ranks' gradients. The gradient of a minimum or maximum goes
    to the ranks that have it, in equal parts.
    """
    arguments.check_choice("allreduce", "op", op, REDUCTIONS)
    if isinstance(tensor, (list, tuple)):
        return [allreduce(element, op, name) for element in tensor]
    tensor = common.make_dense_tensor("allreduce", tensor)
    if tensor.dtype.is_bool and op in ("mean", "sum"):
        raise TypeError(f"allreduce: the {op} of bool tensors is not defined; cast to an integer or float type")
    import tensorflow as tf

    if not world.is_active():
        return tf.identity(tensor)
    if op == "mean" and tensor.dtype in (tf.int32, tf.uint8):
        # The sum of many ranks may overflow these types.
        return tf.cast(_reduce_tensor(tf.cast(tensor, tf.int64), op, name), tensor.dtype)
    return _reduce_tensor(tensor, op, name)


def _reduce_tensor(tensor: Any, op: str, name: str | None) -> Any:
    """The reduction of one tensor over all ranks, by an op that runs after the previous collectives (`order.py`)."""
    return make_in_order(
        get_library().ops.matex_allreduce, x=tensor, reduction=op, place=name or "", turn=common.make_turn()
    )


def _compute_gradient(op: Any, gradient: Any) -> Any:
    """The gradient of the op's input; `allreduce` defines it."""
    import tensorflow as tf

    reduction = op.get_attr("reduction").decode()
    if reduction in ("sum", "mean"):
        return common.add_order_gradient(op, allreduce(gradient, reduction, common.name_gradient(op)))
    # Ranks with the minimum or maximum share the gradient equally, as equal elements do in tf.reduce_max.
    has_extreme = tf.cast(tf.equal(op.inputs[0], op.outputs[0]), gradient.dtype)  # 1 or 0
    count = allreduce(has_extreme, "sum", common.name_gradient(op))
    share = tf.math.divide_no_nan(has_extreme, count)
    return common.add_order_gradient(op, share * allreduce(gradient, "sum", common.name_gradient(op)))


common.register_gradient("MatexAllreduce", _compute_gradient)
