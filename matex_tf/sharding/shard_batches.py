"""The pipeline of `fit` on each rank's own arrays: reads chosen rows, and exchanges rows between ranks before an epoch.

`steps.own_arrays` makes the dataset, which calls a function from `make_row_reader` with the indices of a batch's rows.
If the arrays come from a reader with reshuffle="epoch", ranks exchange rows before each iteration (`prepare_epoch`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from matex_tf import tags
from matex_tf.lazy import tf
from matex_tf.sharding import exchange, shard_arrays, slice_bounds
from matex_tf.world import world

BEFORE_EPOCH = "what is done before each iteration"
"""The tag of a dataset with the function that `prepare_epoch` calls before each iteration of the dataset, or None."""


def make_row_reader(
    inputs: Any, counts: Sequence[int], reshuffle: int | None
) -> tuple[Callable[[Any], Any], Any, list[np.ndarray]]:
    """A function that returns the rows of `inputs` with given indices; the action before each epoch, or None; and the
    arrays that the function reads in Python.

    TensorFlow keeps a function of `tf.numpy_function` until the process ends. The caller empties the list when no
    pipeline can call the function any more, so that the arrays do not stay in memory as long.

    inputs: arrays of this rank's rows, in any structure.
    counts: the number of rows of each rank.
    reshuffle: the seed with which ranks exchange rows before each epoch; None: they do not.
    """
    row_count = counts[world.get_world().rank]
    # A rank without rows computes one row of zeros, which adds 0 to every sum.
    arrays = tf.nest.map_structure(
        lambda array: np.asarray(array) if row_count else np.zeros((1, *array.shape[1:]), array.dtype), inputs
    )
    if reshuffle is None:
        with shard_arrays.keeps_rows.set(True):  # the tensors lose the mark of own rows, which the dataset has
            tensors = tf.nest.map_structure(tf.convert_to_tensor, arrays)
        return lambda indices: tf.nest.map_structure(lambda tensor: tf.gather(tensor, indices), tensors), None, []

    # The exchange writes into the arrays between epochs, so they must be writeable. A tensor would be a copy.
    flat_arrays = [array if array.flags.writeable else array.copy() for array in tf.nest.flatten(arrays)]

    def read_rows(indices: Any) -> Any:
        tensors = tf.numpy_function(
            lambda index: [array[index] for array in flat_arrays], [indices], [a.dtype for a in flat_arrays]
        )
        for tensor, array in zip(tensors, flat_arrays, strict=True):
            tensor.set_shape([None, *array.shape[1:]])
        return tf.nest.pack_sequence_as(arrays, tensors)

    return read_rows, exchange.make_epoch_action([array[:row_count] for array in flat_arrays], reshuffle), flat_arrays


def prepare_epoch(dataset: Any) -> None:
    """Call the functions of `dataset` and of the stages of its pipeline, before it is iterated. Collective."""
    for stage in slice_bounds.list_pipeline(dataset):
        if action := tags.get_tag(stage, BEFORE_EPOCH):
            action()
