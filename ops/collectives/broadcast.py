"""Broadcast: the tensor of one rank, on every rank."""

from __future__ import annotations

from typing import Any

from matex_tf import arguments
from matex_tf.world import world

from ..library import get_library
from ..order import make_in_order
from . import common
from .allreduce import allreduce


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
        import tensorflow as tf

        return tf.identity(tensor)
    # The op runs after the collectives that were created before it; in a v1 graph its `turn` orders it.
    return make_in_order(
        get_library().ops.matex_broadcast, x=tensor, root=root, place=name or "", turn=common.make_turn()
    )


def _compute_gradient(op: Any, gradient: Any) -> Any:
    import tensorflow as tf

    summed_gradient = allreduce(gradient, "sum", common.name_gradient(op))
    # Ranks compare the ops of their traces, but not the values of constants. So all ranks create the same ops.
    is_root = tf.constant(world.get_world().rank == op.get_attr("root"))
    return common.add_order_gradient(op, tf.where(is_root, summed_gradient, tf.zeros_like(summed_gradient)))


common.register_gradient("MatexBroadcast", _compute_gradient)
