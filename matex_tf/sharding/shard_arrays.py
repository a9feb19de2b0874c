"""Shards: arrays and datasets that have the rows of this rank only.

A `ShardArray` is marked by its class, a dataset by `mark_share`. `fit` and training loops do not slice a shard again.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from matex_tf import errors, tags
from matex_tf.lazy import tf
from matex_tf.sharding import slice_bounds
from matex_tf.thread_flag import ThreadFlag

_SHARE = "rows of this rank only"  # a tag of datasets
keeps_rows = ThreadFlag()
"""Set while this thread makes tensors of a shard for a dataset, which is marked instead of the tensors. At other times
a tensor of a shard is an error, or prints a note, since it has no mark (`steps.own_data`).
"""


class Dealt(NamedTuple):
    """How the rows of a shard were dealt to the ranks, as far as a training step needs to know it.

    batch_size: the shard consists of this rank's slices of global batches of this size, in order; None: it does not.
    reshuffle: the seed with which the ranks exchange rows between epochs; None: they do not exchange rows.
    """

    batch_size: int | None = None
    reshuffle: int | None = None


class ShardArray(np.ndarray):
    """An array of rows that only this rank holds, so it is not sliced again. The class itself is the mark.

    The mark survives NumPy operations (slices, `astype`, arithmetic, `np.concatenate`, `np.where`, ...).

    dealt: how the rows were dealt. It is kept as long as the number of rows stays the same.
    """

    dealt: Dealt | None = None

    __array_priority__ = 1.0  # above ndarray's 0, so that an operation on a shard and a plain array returns a shard

    def __array_finalize__(self, source: Any) -> None:
        if isinstance(source, ShardArray) and source.shape[:1] == self.shape[:1]:
            self.dealt = source.dealt

    def __array_wrap__(self, array: np.ndarray, context: Any = None, return_scalar: bool = False) -> Any:
        # Without this method the sum of a shard would be a shard without dimensions instead of a number.
        return array[()] if array.ndim == 0 else array.view(ShardArray)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _mark_result(super().__array_function__(function, types, args, kwargs))


def _mark_result(result: Any) -> Any:
    if type(result) is np.ndarray and result.ndim:
        return result.view(ShardArray)
    if type(result) in (list, tuple):
        return type(result)(_mark_result(item) for item in result)
    return result


def as_shard(array: Any) -> ShardArray:
    """`array` as a ShardArray, without a copy if it is an array already."""
    return np.asarray(array).view(ShardArray)


def is_shard(x: Any) -> bool:
    """Whether `x` is an array of this rank's rows, a view of one, or a dataset from `mark_share`.

    A dataset made from a shard by further stages (`map`, `prefetch`, ...) counts, too.
    """
    if isinstance(x, np.ndarray):
        return _find_shard(x) is not None
    return any(tags.get_tag(dataset, _SHARE) for dataset in slice_bounds.list_pipeline(x))


def find_deal(x: Any) -> Dealt:
    """How the rows of an array were dealt; `Dealt()` if that is unknown or does not matter."""
    shard_array = _find_shard(x) if isinstance(x, np.ndarray) else None
    if shard_array is None or shard_array.shape[:1] != x.shape[:1]:
        return Dealt()
    return shard_array.dealt or Dealt()


def _find_shard(array: Any) -> ShardArray | None:
    while array is not None:
        if isinstance(array, ShardArray):
            return array
        # `np.asarray(shard)` is a view that is no ShardArray. If the shard owns its memory, it is the view's base.
        array = getattr(array, "base", None)
    return None


def mark_share(dataset: Any) -> Any:
    """Mark a tf.data.Dataset as one of this rank's own rows; returns it. Raises UnsupportedError in a graph."""
    if not tf.executing_eagerly():
        refuse_dataset("is made within a function or a tf.compat.v1 graph")
    tags.set_tag(dataset, _SHARE, True)
    return dataset


def refuse_dataset(use: str) -> None:
    """Raises UnsupportedError, if ranks run, for a use of a dataset of own rows that is taken for one of all rows."""
    from matex_tf.world import world

    if world.is_active():
        raise errors.UnsupportedError(
            f"a dataset of each rank's own rows (matex_tf.shard, DataSet) {use}, where nothing tells that its rows are "
            "not those of all ranks. Make it in eager code and loop over it, feed arrays of these rows, or give every "
            "rank all of the data"
        )


def shard(x: Any, *, rank: int | None = None, size: int | None = None) -> Any:
    """This rank's rows of `x`, marked as a shard.

    An array or eager tensor gives this rank's contiguous rows as a ShardArray (`slice_bounds.deal_block`); tuples and
    dicts of arrays give tuples and dicts. A tf.data.Dataset of batches gives the dataset of this rank's slice of each
    batch; some slices are empty if a batch has fewer rows than there are ranks. A shard is returned unchanged.

    Args:
        rank, size: by default this rank and the number of ranks that train. A rank that only keeps weights
            (MATEX_STRATEGY=servers:S:only) has no rows.

    Raises:
        TypeError: `x` is another object.
        ValueError: an array has no dimension, arrays have different numbers of rows, or a dataset is not batched.
    """
    rank_and_size = {"rank": rank, "size": size}
    is_default = rank is None and size is None
    if rank is None or size is None:
        from matex_tf.world import world

        me = world.get_world()
        rank, size = (me.rank if rank is None else rank), (me.trainers if size is None else size)
    if not is_default and not 0 <= rank < size:
        raise ValueError(f"shard: rank has to be 0 to size - 1; given rank={rank}, size={size}")
    if is_shard(x):
        return x
    # Structures: each item by itself.
    if isinstance(x, dict):
        _check_rows(x)
        shards = copy.copy(x)
        shards.update({key: shard(value, **rank_and_size) for key, value in x.items()})
        return shards
    if isinstance(x, tuple):
        _check_rows(dict(enumerate(x)))
        items = [shard(value, **rank_and_size) for value in x]
        return tuple(items) if type(x) is tuple else type(x)(*items)  # a named tuple takes its items one by one
    if hasattr(x, "element_spec") and hasattr(x, "map"):
        return _shard_dataset(x, rank, size)
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError("shard: expected an array without a mask, which would be lost; fill it: shard(x.filled(...))")
    if isinstance(x, np.ndarray) or _is_eager(x):
        array = np.asarray(x)
        if array.ndim == 0:
            raise ValueError("shard: an array of at least one dimension was expected; this one has none, so no rows")
        start, stop = slice_bounds.deal_block(len(array), rank, size)
        return as_shard(array[start:stop])
    raise TypeError(
        "shard: expected a NumPy array, an eager tensor, a tuple or dict of them, or a tf.data.Dataset; "
        f"given a {type(x).__name__}"
    )


def _check_rows(arrays: Mapping[Any, Any]) -> None:
    """Check that the arrays of a tuple or dict have equally many rows."""
    row_counts = {
        key: int(value.shape[0])
        for key, value in arrays.items()
        if not is_shard(value) and (isinstance(value, np.ndarray) or _is_eager(value)) and len(value.shape)
    }
    if len(set(row_counts.values())) > 1:
        raise ValueError(f"shard: expected arrays of one number of rows; given {row_counts}")


def _shard_dataset(dataset: Any, rank: int, size: int) -> Any:
    if slice_bounds.is_batched(dataset) is False:  # None: unknown, as of a generator; its elements may be batches
        raise ValueError("shard: the dataset yields single elements; put .batch(...) before shard(dataset)")

    def slice_batch(*batch: Any) -> Any:
        rows = slice_bounds.count_batch_rows(batch)
        start, stop = slice_bounds.deal_block(rows, rank, size)
        sliced = tf.nest.map_structure(lambda component: slice_bounds.slice_rows(component, start, stop), batch)
        return sliced if len(sliced) > 1 else sliced[0]

    return mark_share(dataset.map(slice_batch))


def _is_eager(value: Any) -> bool:
    """Whether `value` is a dense tensor, or a variable, whose value is known now."""
    tf = sys.modules.get("tensorflow")
    is_tensor = tf is not None and isinstance(value, (tf.Tensor, tf.Variable))
    return is_tensor and hasattr(value, "numpy") and value.shape.rank is not None
