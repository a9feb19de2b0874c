"""All-gather: the concatenation of all ranks' rows."""

from __future__ import annotations

from typing import Any

from matex_tf.world import world

from ..library import get_library
from ..order import make_in_order
from . import common
from .allreduce import allreduce


def allgather(tensor: Any, name: str | None = None) -> Any:
    """The rows of all ranks, concatenated in rank order, on every rank.

    The first dimension may differ between ranks and may be 0; the other dimensions and the dtype must be equal. Scalars
    give a vector with one element per rank. The gradient of a rank's rows is the sum of all ranks' gradients of them.
    """
    tensor = common.make_dense_tensor("allgather", tensor)
    if not world.is_active():
        import tensorflow as tf

        return tf.reshape(tensor, [1]) if tensor.shape.rank == 0 else tf.identity(tensor)
    return make_in_order(get_library().ops.matex_allgather, x=tensor, place=name or "", turn=common.make_turn()).y


def _compute_gradient(op: Any, gradient: Any, _rows: Any) -> Any:
    """The gradient of the op's input: this rank's rows of the sum of all ranks' gradients."""
    import tensorflow as tf

    summed_gradient = allreduce(gradient, "sum", common.name_gradient(op))
    rank = world.get_world().rank
    row_counts = op.outputs[1]
    start = tf.reduce_sum(row_counts[:rank])
    # A scalar was gathered as one row.
    own_gradient = tf.reshape(summed_gradient[start : start + row_counts[rank]], tf.shape(op.inputs[0]))
    return common.add_order_gradient(op, own_gradient)


common.register_gradient("MatexAllgather", _compute_gradient)
