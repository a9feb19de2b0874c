"""Weak scaling: each rank takes whole batches of its own from one dataset, in turn."""

from __future__ import annotations

from typing import Any

from matex_tf.sharding import iteration, row_shares, sliced_dataset, step_weight
from matex_tf.world import world


def group_batches(dataset: Any) -> Any:
    """A dataset of `Batch` for weak scaling: of each group of as many batches as ranks train, this rank's own.

    Ranks that have no batch of their own, as some may in the last group, get the group's first with weight 0.
    """
    return iteration.exempt_dataset(iteration.read_alike(dataset, _group))


def _group(dataset: Any) -> Any:
    import tensorflow as tf

    me = world.get_world()

    def count(element: Any) -> Any:
        return row_shares.count_batch_rows(element)

    def pack(*element: Any) -> Any:
        return element if len(element) > 1 else element[0]

    real = dataset.map(lambda *element: (pack(*element), True))
    padding = dataset.take(1).map(lambda *element: (pack(*element), False)).repeat(me.trainers - 1)

    def step(state: Any, item: Any) -> Any:
        position, rows_of_group, numbers_of_mine, mine = state
        element, is_real = item
        rows = tf.where(is_real, tf.cast(count(element), tf.int64), tf.constant(0, tf.int64))
        first = position == 0
        rows_of_group = tf.where(first, rows, rows_of_group + rows)
        take = tf.logical_or(first, tf.logical_and(is_real, position == me.rank))
        own = rows * tf.cast(position == me.rank, tf.int64)
        numbers_of_mine = tf.where(first, own, numbers_of_mine + own)
        mine = tf.cond(take, lambda: element, lambda: mine)
        last = position == me.trainers - 1
        result = (mine, numbers_of_mine, rows_of_group, last)
        return (tf.where(last, tf.constant(0, tf.int64), position + 1), rows_of_group, numbers_of_mine, mine), result

    spec = dataset.element_spec
    start = sliced_dataset.make_zero_batch(spec)  # which the first of a group takes the place of
    zero = tf.constant(0, tf.int64)
    groups = real.concatenate(padding).scan((zero, zero, zero, start), step)
    groups = groups.filter(lambda mine, own, rows, last: tf.logical_and(last, rows > 0))

    def batch(mine: Any, own: Any, rows: Any, last: Any) -> sliced_dataset.Batch:
        has_rows = own > 0
        first_row = sliced_dataset.take_rows(mine, zero, tf.constant(1, tf.int64))
        data = tf.cond(has_rows, lambda: mine, lambda: first_row)
        return sliced_dataset.Batch(data, step_weight.make_slice_tensor(has_rows, zero, own, rows))

    result = groups.map(batch)
    total = int(dataset.cardinality())
    if total >= 0:
        result = result.apply(tf.data.experimental.assert_cardinality(-(-total // me.trainers)))
    elif total == tf.data.INFINITE_CARDINALITY:
        result = result.apply(tf.data.experimental.assert_cardinality(total))
    return result
