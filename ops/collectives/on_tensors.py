"""The collectives on one tensor: all-reduce, broadcast, all-gather; and the barrier.

Each function checks its arguments and creates an op, which runs after the collectives that were created before it
(`order.py`); in a v1 graph its `turn` orders it. Then comes the gradient of the op (`common.py`).
"""

from __future__ import annotations

from typing import Any

from matex_tf import arguments
from matex_tf.lazy import tf
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
    if not world.is_active():
        return tf.identity(tensor)
    if op == "mean" and tensor.dtype in (tf.int32, tf.uint8):
        # The sum of many ranks may overflow these types.
        return tf.cast(_reduce_tensor(tf.cast(tensor, tf.int64), op, name), tensor.dtype)
    return _reduce_tensor(tensor, op, name)


def _reduce_tensor(tensor: Any, op: str, name: str | None) -> Any:
    """The reduction of one tensor over all ranks."""
    return make_in_order(
        get_library().ops.matex_allreduce, x=tensor, reduction=op, place=name or "", turn=common.make_turn()
    )


def _compute_allreduce_gradient(op: Any, gradient: Any) -> Any:
    """The gradient of the op's input; `allreduce` defines it."""
    reduction = op.get_attr("reduction").decode()
    if reduction in ("sum", "mean"):
        return common.add_order_gradient(op, allreduce(gradient, reduction, common.name_gradient(op)))
    # Ranks with the minimum or maximum share the gradient equally, as equal elements do in tf.reduce_max.
    has_extreme = tf.cast(tf.equal(op.inputs[0], op.outputs[0]), gradient.dtype)  # 1 or 0
    count = allreduce(has_extreme, "sum", common.name_gradient(op))
    share = tf.math.divide_no_nan(has_extreme, count)
    return common.add_order_gradient(op, share * allreduce(gradient, "sum", common.name_gradient(op)))


def broadcast(tensor: Any, root: int = 0, name: str | None = None) -> Any:
    """The tensor of rank `root`, on every rank. All ranks pass the same shape and dtype.

    The gradient goes to rank `root`, summed over all ranks; on the other ranks it is zero.
    """
    size = world.get_world().size
    root = arguments.check_whole_number("broadcast", "root, a rank,", root, 0)
    if root >= size:
        raise ValueError(f"broadcast: expected root to be a rank from 0 to {size - 1}; given {root}")
    tensor = common.make_dense_tensor("broadcast", tensor)
    if not world.is_active():
        return tf.identity(tensor)
    return make_in_order(
        get_library().ops.matex_broadcast, x=tensor, root=root, place=name or "", turn=common.make_turn()
    )


def _compute_broadcast_gradient(op: Any, gradient: Any) -> Any:
    summed_gradient = allreduce(gradient, "sum", common.name_gradient(op))
    # Ranks compare the ops of their traces, but not the values of constants. So all ranks create the same ops.
    is_root = tf.constant(world.get_world().rank == op.get_attr("root"))
    return common.add_order_gradient(op, tf.where(is_root, summed_gradient, tf.zeros_like(summed_gradient)))


def allgather(tensor: Any, name: str | None = None) -> Any:
    """The rows of all ranks, concatenated in rank order, on every rank.

    The first dimension may differ between ranks and may be 0; the other dimensions and the dtype must be equal. Scalars
    give a vector with one element per rank. The gradient of a rank's rows is the sum of all ranks' gradients of them.
    """
    tensor = common.make_dense_tensor("allgather", tensor)
    if not world.is_active():
        return tf.reshape(tensor, [1]) if tensor.shape.rank == 0 else tf.identity(tensor)
    return make_in_order(get_library().ops.matex_allgather, x=tensor, place=name or "", turn=common.make_turn()).y


def _compute_allgather_gradient(op: Any, gradient: Any, _rows: Any) -> Any:
    """The gradient of the op's input: this rank's rows of the sum of all ranks' gradients."""
    summed_gradient = allreduce(gradient, "sum", common.name_gradient(op))
    rank = world.get_world().rank
    row_counts = op.outputs[1]
    start = tf.reduce_sum(row_counts[:rank])
    # A scalar was gathered as one row.
    own_gradient = tf.reshape(summed_gradient[start : start + row_counts[rank]], tf.shape(op.inputs[0]))
    return common.add_order_gradient(op, own_gradient)


def barrier(name: str | None = None) -> Any:
    """Return when every rank has called it. In a graph: an operation that does so when it runs."""
    if not world.is_active():
        return None if tf.executing_eagerly() else tf.no_op()
    return make_in_order(get_library().ops.matex_barrier, place=name or "", turn=common.make_turn())


common.register_gradient("MatexAllreduce", _compute_allreduce_gradient)
common.register_gradient("MatexBroadcast", _compute_broadcast_gradient)
common.register_gradient("MatexAllgather", _compute_allgather_gradient)
