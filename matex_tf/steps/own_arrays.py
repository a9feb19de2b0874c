"""Datasets of each rank's own rows, from its arrays or its dataset, with equally many batches on all ranks.

The hooks of Keras' `fit`, `evaluate` and `predict` make them of arrays of `matex_tf.shard` and readers. Example: rank 0
has 6 rows, rank 1 has 2, and the script's batch size is 4. Each step takes 3 rows of rank 0 and 1 row of rank 1.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf import errors, tags
from matex_tf.lazy import tf
from matex_tf.runtime import notes, objects
from matex_tf.sharding import apportion, exchange, fingerprint, shard_arrays, slice_bounds
from matex_tf.world import world

_BEFORE_EPOCH = "what is done before each iteration"  # a tag of datasets


def are_own(inputs: Any, name: str) -> bool:
    """Whether a structure of arrays, `name`, holds each rank's own rows. Collective.

    Raises BatchError on every rank if the arrays are neither each rank's own rows nor equal on all ranks.
    """
    arrays = _list_arrays(inputs)
    return bool(arrays) and fingerprint.are_shares(arrays, name)


def are_computed_alone(inputs: Any, name: str, meets: bool = True) -> bool:
    """Whether each rank computes a structure of arrays by itself. Collective; the same on all ranks.

    That is so in three cases: the arrays of a rank hold its own rows; they differ between ranks; or they have fewer
    rows than there are ranks.

    meets: False: a rank that is in the first or the last case by its own arrays asks no other rank, so that ranks may
        make different numbers of calls of `predict_on_batch`.
    """
    arrays = _list_arrays(inputs)
    are_few = not arrays or any(array.ndim == 0 or len(array) < world.get_world().size for array in arrays)
    if not meets and (are_few or any(map(shard_arrays.is_shard, arrays))):
        return True
    return fingerprint.are_each_ranks_own(arrays, name) or are_few


def _list_arrays(inputs: Any) -> list[np.ndarray]:
    leaves = [leaf for leaf in tf.nest.flatten(inputs, expand_composites=True) if leaf is not None]
    arrays = [leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf) for leaf in leaves]
    return [array for array in arrays if array.ndim or array.dtype != object]  # a SciPy matrix is no array


def count_rows(inputs: Any, name: str) -> list[int]:
    """The number of rows of each rank. Collective."""
    own_counts = sorted({len(array) for array in _list_arrays(inputs)})
    counts_of_ranks = objects.allgather(own_counts, f"counting the rows of {name}")
    for rank, rank_counts in enumerate(counts_of_ranks):
        if len(rank_counts) != 1:
            raise errors.BatchError(f"{name}: the arrays of rank {rank} have different numbers of rows: {rank_counts}")
    return [rank_counts[0] for rank_counts in counts_of_ranks]


def agree_on_deal(inputs: Any, batch_size: int, shuffle: bool, name: str) -> shard_arrays.Dealt:
    """How a reader dealt the rows of the whole data to the ranks, which depends on the batch size. Collective.

    Raises BatchError on every rank if the rows were dealt for batches of another size than `batch_size`.
    """
    facts = zip(*map(shard_arrays.find_deal, _list_arrays(inputs)))  # each from the first array that has it
    dealt = shard_arrays.Dealt(*(next((value for value in values if value is not None), None) for values in facts))
    deals = objects.allgather((dealt, batch_size), f"how the rows of {name} were dealt")
    if any(deal != deals[0] for deal in deals) or dealt.batch_size not in (None, batch_size):
        raise errors.BatchError(
            f'{name}: its rows were dealt for batches of {deals[0][0].batch_size} (distribution="batch"), the batch '
            f"size of this call is {batch_size}; give both the same, on all ranks"
        )
    if dealt.batch_size is not None and shuffle:
        notes.print_note(
            'the rows were dealt in batches (distribution="batch") for the loss curve of the sequential run, but '
            "fit shuffles them (its default); with shuffle=False each step has the sequential run's rows"
        )
    return dealt


def make_dataset(inputs: Any, counts: Sequence[int], batch_size: int, shuffle: bool, dealt: shard_arrays.Dealt) -> Any:
    """A dataset of this rank's rows of each batch, possibly none, marked as its own rows.

    inputs: a structure of arrays, each with this rank's `counts[rank]` rows.
    counts: the number of rows of each rank.
    batch_size: rows of all ranks in each step; the last step takes the remainder.
    shuffle: this rank's rows come in a new order in each epoch.
    dealt: see `agree_on_deal`. With `reshuffle`, ranks exchange rows before each epoch.
    """
    rank, steps = world.get_world().rank, -(-sum(counts) // batch_size)  # rounded up
    counts_at_steps = (apportion.apportion_rows(counts, step * batch_size) for step in range(steps + 1))
    bounds = np.array([counts_of_ranks[rank] for counts_of_ranks in counts_at_steps], np.int64)
    ranges = tf.data.Dataset.from_tensor_slices((bounds[:-1], bounds[1:]))
    # A rank without rows computes one row of zeros, which adds 0 to every sum.
    arrays = tf.nest.map_structure(
        lambda array: np.asarray(array) if counts[rank] else np.zeros((1, *array.shape[1:]), array.dtype),
        _make_tuples(inputs),
    )
    exchanged_arrays: list[np.ndarray] = []  # the exchange writes into them, so they must be writeable
    if dealt.reshuffle is not None:
        exchanged_arrays += (array if array.flags.writeable else array.copy() for array in tf.nest.flatten(arrays))

    def order_rows(_: Any) -> Any:
        rows = tf.range(counts[rank], dtype=tf.int64)
        return tf.random.shuffle(rows) if shuffle else rows

    def split_in_steps(rows: Any) -> Any:
        return ranges.map(lambda start, end: rows[start:end])

    # In each epoch: the indices of this rank's rows, in one vector for each step; then these rows.
    chosen_rows = tf.data.Dataset.from_tensors(0).map(order_rows).flat_map(split_in_steps)
    dataset = chosen_rows.map(_make_reader(arrays, exchanged_arrays), num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps)).prefetch(tf.data.AUTOTUNE)
    if dealt.reshuffle is not None:
        own_rows = [array[: counts[rank]] for array in exchanged_arrays]
        tags.set_tag(dataset, _BEFORE_EPOCH, exchange.make_epoch_action(own_rows, dealt.reshuffle))
        # TensorFlow keeps a function of `tf.numpy_function`, which has the list, until the process ends.
        weakref.finalize(dataset, exchanged_arrays.clear).atexit = False
    return shard_arrays.mark_share(dataset)


def _make_reader(arrays: Any, exchanged_arrays: list[np.ndarray]) -> Any:
    """A function that returns the rows of `arrays`, a structure, with given indices.

    exchanged_arrays: the flat arrays, if ranks exchange rows between epochs: a tensor would be a copy. Else empty.
    """
    if not exchanged_arrays:
        with shard_arrays.keeps_rows.set(True):  # the tensors lose the mark of own rows, which the dataset has
            tensors = tf.nest.map_structure(tf.convert_to_tensor, arrays)
        return lambda indices: tf.nest.map_structure(lambda tensor: tf.gather(tensor, indices), tensors)
    dtypes, shapes = zip(*((array.dtype, [None, *array.shape[1:]]) for array in exchanged_arrays))

    def read_rows(indices: Any) -> Any:
        rows = tf.numpy_function(lambda index: [array[index] for array in exchanged_arrays], [indices], list(dtypes))
        for tensor, shape in zip(rows, shapes, strict=True):
            tensor.set_shape(shape)
        return tf.nest.pack_sequence_as(arrays, rows)

    return read_rows


def prepare_epoch(dataset: Any) -> None:
    """Exchange rows, before `dataset` is iterated, if one of its stages reads rows that ranks exchange. Collective."""
    for stage in slice_bounds.list_pipeline(dataset):
        if action := tags.get_tag(stage, _BEFORE_EPOCH):
            action()


def _make_tuples(inputs: Any) -> Any:
    """Lists become tuples: `tf.data` would make one tensor of a list."""
    if isinstance(inputs, dict):
        return {key: _make_tuples(value) for key, value in inputs.items()}
    return tuple(map(_make_tuples, inputs)) if isinstance(inputs, (list, tuple)) else inputs


def pad_batches(dataset: Any, name: str) -> Any:
    """The dataset with as many batches as on the rank that has most; added batches have no rows. Collective.

    If one rank does not know how many batches it has, all ranks get datasets of unknown length, and take batches until
    the data of all ranks have ended (`rewrite.own_batches`).
    """
    batch_counts = objects.allgather(int(dataset.cardinality()), f"counting the batches of {name}")
    if tf.data.UNKNOWN_CARDINALITY in batch_counts:
        # Its length is unknown, so that Keras iterates alike on all ranks.
        even_dataset = dataset.filter(lambda *_: True)
    else:
        empty_batch = tf.nest.map_structure(lambda spec: _make_rows(spec, 0), dataset.element_spec)
        endless_dataset = dataset.concatenate(tf.data.Dataset.from_tensors(empty_batch).repeat())
        even_dataset = (
            endless_dataset if tf.data.INFINITE_CARDINALITY in batch_counts else endless_dataset.take(max(batch_counts))
        )
    return shard_arrays.mark_share(even_dataset)


def prepare_alone(x: Any) -> tuple[Any, bool]:
    """The data that a rank with its own rows computes by itself, and whether it has any.

    Keras does not call the model without batches, and models need not accept an empty batch. So batches without rows
    are left out, and a row of zeros replaces data without rows.
    """
    if not hasattr(x, "element_spec"):
        if any(len(array) for array in _list_arrays(x)):
            return x, True
        return tf.nest.map_structure(lambda array: np.zeros((1, *array.shape[1:]), array.dtype), x), False
    filled_batches = x.filter(lambda *batch: slice_bounds.count_batch_rows(batch) > 0)
    if next(iter(filled_batches), None) is not None:
        return filled_batches, True
    return tf.data.Dataset.from_tensors(tf.nest.map_structure(lambda spec: _make_rows(spec, 1), x.element_spec)), False


def _make_rows(spec: Any, rows: int) -> Any:
    """So many rows of zeros. Other unknown sizes are equal to `rows`."""
    return tf.zeros([rows, *(size or rows for size in spec.shape.as_list()[1:])], spec.dtype)
