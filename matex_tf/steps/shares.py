"""The share of a batch that a rank computes, in a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf.rewrite.emit import Share
from matex_tf.sharding import row_shares
from matex_tf.world import world


def make_share(components: Sequence[Any]) -> Share:
    """This rank's share of a whole batch, of its components: tensors of at least one dimension.

    Where the components have different numbers of rows, every rank has the whole of each and the first contributes.
    """
    import tensorflow as tf

    counts = [tf.shape(one, tf.int64)[0] for one in components]
    share = make_share_of_rows(counts[0])
    if len(counts) == 1:
        return share
    even = tf.reduce_all(tf.equal(tf.stack(counts[1:]), share.total))
    first, count = tf.where(even, share.first, tf.zeros_like(share.first)), tf.where(even, share.count, share.total)
    contributes = tf.where(even, share.contributes, share.keeps)
    return Share(first, count, share.total, contributes, share.keeps, is_split=even)


def make_share_of_rows(total: Any) -> Share:
    """This rank's share of a batch of `total` rows, a scalar int64."""
    import tensorflow as tf

    me = world.get_world()
    start, stop, has_rows = row_shares.find_slice_bounds(total, me.rank, me.trainers)
    return Share(start, stop - start, total, has_rows, tf.constant(me.rank == 0))


def make_no_share() -> Share:
    """Before any batch is there: all ranks compute the same."""
    import tensorflow as tf

    zero, one = tf.constant(0, tf.int64), tf.constant(1, tf.int64)
    keeps = tf.constant(world.get_world().rank == 0)
    return Share(zero, one, one, tf.constant(True), keeps)
