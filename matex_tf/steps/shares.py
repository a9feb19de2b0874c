"""The share of a batch that a rank computes, in a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf import ops
from matex_tf.rewrite.emit import Share
from matex_tf.sharding import row_shares
from matex_tf.world import world


def make_share(components: Sequence[Any]) -> Share:
    """This rank's share of a whole batch, of its components: tensors of at least one dimension.

    Where the components have different numbers of rows, every rank has the whole of each and the first contributes.
    """
    import tensorflow as tf

    me = world.get_world()
    counts = [tf.shape(one, tf.int64)[0] for one in components]
    total = counts[0]
    start, stop, has_rows = row_shares.find_slice_bounds(total, me.rank, me.trainers)
    keeps = tf.constant(me.rank == 0)
    if len(counts) == 1:
        return Share(start, stop - start, total, has_rows, keeps)
    even = tf.reduce_all(tf.equal(tf.stack(counts[1:]), total))
    first, count = tf.where(even, start, tf.zeros_like(start)), tf.where(even, stop - start, total)
    return Share(first, count, total, tf.where(even, has_rows, keeps), keeps, is_split=even)


def make_own_share(tensor: Any, rows: Any) -> Share:
    """The share of a rank whose tensors have its own rows alone. Collective in the graph, before what it is for.

    Args:
        tensor: one of them, of at least one row.
        rows: how many rows of it are the rank's own, a scalar int64; 0 where it has a row that counts for nothing.
    """
    import tensorflow as tf

    me = world.get_world()
    counts = ops.allgather(rows[tf.newaxis], "the rows that each rank feeds")
    total = tf.maximum(tf.reduce_sum(counts), 1)
    first = tf.minimum(tf.reduce_sum(counts[: me.rank]), total - 1)
    with tf.control_dependencies([counts.op]):
        contributes = tf.identity(rows > 0)
    return Share(first, tf.shape(tensor, tf.int64)[0], total, contributes, tf.constant(me.rank == 0))


def fill_empty(tensor: Any) -> Any:
    """The tensor, or one row of zeros where it has none."""
    import tensorflow as tf

    shape = tf.shape(tensor, tf.int64)
    missing = tf.maximum(1 - shape[:1], 0)
    filled = tf.concat([tensor, tf.zeros(tf.concat([missing, shape[1:]], 0), tensor.dtype)], 0)
    filled.set_shape(tensor.shape)
    return filled


def make_no_share() -> Share:
    """Before any batch is there: all ranks compute the same."""
    import tensorflow as tf

    zero, one = tf.constant(0, tf.int64), tf.constant(1, tf.int64)
    keeps = tf.constant(world.get_world().rank == 0)
    return Share(zero, one, one, tf.constant(True), keeps)
