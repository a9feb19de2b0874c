"""One rank's value of a tensor, on every rank."""

from __future__ import annotations

from typing import Any

from matex_tf import arguments
from matex_tf.world import world

from ..library import library, on_load
from ..order import in_order
from . import common
from .allreduce import allreduce


def broadcast(tensor: Any, root: int = 0, name: str | None = None) -> Any:
    """Rank `root`'s value of a tensor, on every rank; all ranks give the same shape and dtype.

    The gradient goes to rank `root`, summed over all ranks; it is zero on the others.
    """
    size = world.current().size
    root = arguments.whole_number("broadcast", "root, a rank,", root, 0)
    if root >= size:
        raise ValueError(f"broadcast: expected root to be a rank from 0 to {size - 1}; given {root}")
    tensor = common.dense_tensor("broadcast", tensor)
    if not world.is_active():
        import tensorflow as tf

        return tf.identity(tensor)
    return in_order(library().ops.matex_broadcast, x=tensor, root=root, place=name or "", turn=common.next_turn())


def _gradient(op: Any, gradient: Any) -> Any:
    import tensorflow as tf

    summed = allreduce(gradient, "sum", common.gradient_name(op))
    # The same ops on all ranks: by what a gradient is made of, its update is announced (announcing.py).
    is_root = tf.constant(world.current().rank == op.get_attr("root"))
    return common.with_order(op, tf.where(is_root, summed, tf.zeros_like(summed)))


def _register() -> None:
    import tensorflow as tf

    tf.RegisterGradient("MatexBroadcast")(_gradient)


on_load.append(_register)
