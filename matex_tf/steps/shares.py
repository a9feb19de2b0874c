"""The share of a batch that a rank computes, in a graph."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from matex_tf.rewrite.own_batches import OwnRows
from matex_tf.rewrite.sharing import Exchanger, Request, Share
from matex_tf.sharding import row_shares
from matex_tf.world import world

UNEVEN = (
    "the components of a batch have different numbers of rows, as of datasets with other batch sizes, zipped together. "
    "MATEX_STEPS=patches computes such batches whole. The numbers:"
)


def make_share(components: Sequence[Any]) -> Share:
    """This rank's share of a whole batch, of its components: tensors of at least one dimension.

    Where the components have different numbers of rows, all ranks raise an error.
    """
    import tensorflow as tf

    counts = [tf.shape(one, tf.int64)[0] for one in components]
    if len(counts) > 1:
        is_even = tf.reduce_all(tf.equal(tf.stack(counts[1:]), counts[0]))
        check = tf.debugging.Assert(is_even, [UNEVEN, tf.stack(counts)], summarize=-1)
        with tf.control_dependencies([] if check is None else [check]):
            counts[0] = tf.identity(counts[0])
    return make_share_of_rows(counts[0])


def make_share_of_rows(total: Any) -> Share:
    """This rank's share of a batch of `total` rows, a scalar int64."""
    import tensorflow as tf

    me = world.get_world()
    start, stop, has_rows = row_shares.find_slice_bounds(total, me.rank, me.trainers)
    return Share(start, stop - start, total, has_rows, tf.constant(me.rank == 0))


def make_own_share(exchanger: Exchanger, components: Sequence[Any], has_batch: Any) -> OwnRows:
    """This rank's share of a batch of which `components` are its own rows: tensors of at least one dimension.

    An error is raised, on all ranks alike, where the components of one have different numbers of rows.
    """
    import tensorflow as tf

    me = world.get_world()
    shapes = tf.concat([[tf.cast(has_batch, tf.int64)], *(tf.shape(one, tf.int64) for one in components)], 0)
    (everyone,) = exchanger.exchange([Request("gather", shapes[tf.newaxis])], tf.constant(True))
    ends = list(itertools.accumulate([1, *(one.shape.rank for one in components)]))
    rows = tf.stack([everyone[:, at] for at in ends[:-1]])
    agree = tf.debugging.Assert(
        tf.reduce_all(tf.equal(rows, rows[0])),
        ["the components of a rank's own batch have different numbers of rows; by component and rank:", rows],
        summarize=-1,
    )
    with tf.control_dependencies([agree] if agree is not None else []):
        counts = tf.identity(rows[0])
    count, before = counts[me.rank], tf.reduce_sum(counts[: me.rank])
    has_rows = count > 0
    first = tf.where(has_rows, before, tf.zeros_like(before))
    keeps = tf.constant(me.rank == 0)
    share = Share(first, tf.maximum(count, 1), tf.reduce_sum(counts), has_rows, keeps)
    largest = tf.reduce_max(everyone, 0)
    sizes = [largest[start + 1 : end] for start, end in itertools.pairwise(ends)]
    return OwnRows(share, largest[0] > 0, sizes)


def make_no_share() -> Share:
    """Before any batch is there: all ranks compute the same."""
    import tensorflow as tf

    zero, one = tf.constant(0, tf.int64), tf.constant(1, tf.int64)
    keeps = tf.constant(world.get_world().rank == 0)
    return Share(zero, one, one, tf.constant(True), keeps)
