"""Batches of shares: each rank takes its part of a global batch from its own rows."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from matex_tf.sharding import apportion, iteration, py_functions, row_shares, share_arrays, sliced_dataset, step_weight
from matex_tf.world import world

_before_epoch: weakref.WeakKeyDictionary[Any, Callable[[], None]] = weakref.WeakKeyDictionary()


def share_dataset(
    inputs: Any, counts: Sequence[int], batch_size: int, shuffle: bool, dealt: share_arrays.Dealt, epochs: int = 1
) -> Any:
    """A dataset of `Batch` over this rank's own rows.

    Args:
        inputs: a structure of arrays, all of this rank's `counts[rank]` rows.
        counts: the rows of each rank.
        batch_size: rows over all ranks in each step; the last step takes what is left.
        shuffle: whether this rank's rows come in a new order in each epoch.
        dealt: how the rows came to the ranks.
        epochs: how many epochs one iteration goes through.
    """
    import numpy as np
    import tensorflow as tf

    me = world.get_world()
    number = -(-sum(counts) // batch_size)
    taken = np.array(
        [apportion.apportion_step_rows(counts, step, batch_size, dealt.batch_size) for step in range(number)]
    )
    taken = taken.reshape(-1, me.size)
    mine, totals = taken[:, me.rank].astype(np.int64), taken.sum(axis=1).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(mine)[:-1]]).astype(np.int64)
    plan = tf.data.Dataset.from_tensor_slices((starts, mine, totals))
    take, before_epoch = make_row_reader(inputs, counts, dealt.reshuffle)

    def order(_: Any) -> Any:
        rows = tf.range(counts[me.rank], dtype=tf.int64)
        return tf.random.shuffle(rows) if shuffle else rows

    def steps_of(rows: Any) -> Any:
        return plan.map(lambda start, own, total: (rows[start : start + tf.maximum(own, 1)], own, total))

    def gather(rows: Any, own: Any, total: Any) -> sliced_dataset.Batch:
        # Past the last row of a rank without rows there is none to compute with weight 0; take its first.
        rows = tf.cond(tf.size(rows) > 0, lambda: rows, lambda: tf.zeros([1], tf.int64))
        return sliced_dataset.Batch(
            take(rows), step_weight.make_slice_tensor(own > 0, tf.constant(0, tf.int64), own, total)
        )

    chosen = tf.data.Dataset.range(epochs).map(order).flat_map(steps_of)
    dataset = py_functions.hold_py_functions(lambda: chosen.map(gather, num_parallel_calls=tf.data.AUTOTUNE))
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(number * epochs))
    dataset = iteration.exempt_dataset(dataset.prefetch(tf.data.AUTOTUNE))
    if before_epoch is not None:
        _before_epoch[dataset] = before_epoch
    return dataset


def make_row_reader(inputs: Any, counts: Sequence[int], reshuffle: int | None) -> tuple[Callable[[Any], Any], Any]:
    """A function that gives chosen rows of `inputs`, and what is to be called before each epoch (None if nothing)."""
    import numpy as np
    import tensorflow as tf

    rows = counts[world.get_world().rank]
    # A rank without rows computes one of zeros, with weight 0.
    arrays = tf.nest.map_structure(
        lambda array: np.asarray(array) if rows else np.zeros((1, *array.shape[1:]), array.dtype), inputs
    )
    if reshuffle is None:
        with share_arrays.keeps_rows.set(True):
            tensors = tf.nest.map_structure(tf.convert_to_tensor, arrays)
        return lambda chosen: tf.nest.map_structure(lambda tensor: tf.gather(tensor, chosen), tensors), None

    from matex_tf.sharding.exchange import BeforeEpoch

    # Tensors would be copies; the arrays change from epoch to epoch.
    flat = [array if array.flags.writeable else array.copy() for array in tf.nest.flatten(arrays)]

    def take(chosen: Any) -> Any:
        parts = tf.numpy_function(lambda index: [array[index] for array in flat], [chosen], [a.dtype for a in flat])
        for part, array in zip(parts, flat, strict=True):
            part.set_shape([None, *array.shape[1:]])
        return tf.nest.pack_sequence_as(arrays, parts)

    return take, BeforeEpoch([array[:rows] for array in flat], reshuffle)


def note_before_epoch(dataset: Any, action: Callable[[], None]) -> None:
    """Have `prepare_epoch` call `action` before each iteration of `dataset`."""
    _before_epoch[dataset] = action


def prepare_epoch(dataset: Any) -> None:
    """What has to be done, on all ranks, before `dataset` is iterated anew."""
    for step in row_shares.list_pipeline(dataset):
        action = _before_epoch.get(step)
        if action is not None:
            action()


def count_most_batches(numbers: Sequence[int]) -> int | None:
    """The number of batches of the rank that has most; None where they do not end, which -1 says."""
    return None if min(numbers) < 0 else max(numbers)


def make_own_batches(dataset: Any, numbers: Sequence[int]) -> Any:
    """A dataset of `OwnBatch` over a rank's own batches, as many as the rank has that has most of `numbers`.

    A rank that has fewer batches goes on with its first row, or, if it has none, with zeros, which count 0.
    """
    import tensorflow as tf

    spec = dataset.element_spec

    def own(*element: Any) -> sliced_dataset.OwnBatch:
        data = element if len(element) > 1 else element[0]
        return sliced_dataset.OwnBatch(data, row_shares.count_batch_rows(data))

    def nothing(*element: Any) -> sliced_dataset.OwnBatch:
        data = element if len(element) > 1 else element[0]
        return sliced_dataset.OwnBatch(
            sliced_dataset.take_rows(data, tf.constant(0), tf.constant(1)), tf.constant(0, tf.int64)
        )

    result = dataset.map(own, num_parallel_calls=1)
    number, has_any = count_most_batches(numbers), numbers[world.get_world().rank] != 0
    if number is not None or not has_any:
        of = dataset.take(1) if has_any else tf.data.Dataset.from_tensors(sliced_dataset.make_zero_batch(spec))
        padding = of.map(nothing).repeat()
        result = result.concatenate(padding).take(-1 if number is None else number)
    return iteration.exempt_dataset(result.prefetch(tf.data.AUTOTUNE))
