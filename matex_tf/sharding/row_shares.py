"""Which rows are mine: contiguous shares of arrays, this rank's slice of a batch, and the mark that says "a share".

Everything here computes; nothing talks to other ranks. TensorFlow is looked at only where a tensor or a dataset is
given.
"""

from __future__ import annotations

import copy
import heapq
import sys
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np


def rows_of(n: int, rank: int, size: int) -> tuple[int, int]:
    """(start, stop) of the rows of `rank` when `n` rows are dealt to `size` ranks in contiguous blocks.

    Blocks differ by at most one row and the earlier ranks have the longer ones; with fewer rows than ranks the last
    ranks have none (start == stop). `n` and `rank` may be ints or integer tensors.
    """
    base, extra = n // size, n % size
    start = rank * base + _minimum(rank, extra)
    stop = (rank + 1) * base + _minimum(rank + 1, extra)
    return start, stop


def slice_bounds(n: Any, rank: int, size: int) -> tuple[Any, Any, Any]:
    """(start, stop, has_rows) of the slice of a batch of `n` rows that `rank` computes.

    A rank without rows of its own computes the first row, to be given weight 0: (0, 1, False); models cannot be
    relied on to accept an empty batch. Only an empty batch has an empty slice, (0, 0, False). `n` is an int, and so
    are the bounds, or a scalar integer tensor, and so are the bounds, of its dtype, with has_rows a bool tensor.
    """
    start, stop = rows_of(n, rank, size)
    if not _is_tensor(n):
        return (start, stop, True) if stop > start else (0, min(1, n), False)
    import tensorflow as tf

    has_rows = stop > start
    return tf.where(has_rows, start, tf.zeros_like(n)), tf.where(has_rows, stop, _minimum(1, n)), has_rows


def slice_rows(component: Any, start: Any, stop: Any) -> Any:
    """Rows `start` to `stop` of one component of a batch, along its first dimension.

    `component` is a NumPy array, tf.Tensor, tf.RaggedTensor or tf.SparseTensor; the bounds are ints or scalar integer
    tensors (which may be symbolic). None and anything without dimensions come back untouched.
    """
    if component is None or isinstance(component, (bool, int, float, complex, str, bytes, np.generic)):
        return component
    tf = sys.modules.get("tensorflow")
    if tf is not None:
        symbolic = any(_is_tensor(bound) and not hasattr(bound, "numpy") for bound in (start, stop))
        if symbolic and isinstance(component, np.ndarray) and component.ndim:
            component = tf.convert_to_tensor(component)
        if isinstance(component, tf.SparseTensor):
            return _slice_sparse(component, start, stop)
        if isinstance(component, (tf.Tensor, tf.Variable)) and component.shape.rank is None:
            return tf.cond(tf.rank(component) > 0, lambda: component[start:stop], lambda: tf.identity(component))
    if not hasattr(component, "shape"):
        raise TypeError(
            "a component of a batch has to be an array or a tensor to be sliced into the ranks' rows; "
            f"this one is a {type(component).__name__}"
        )
    return component[start:stop] if len(component.shape) else component


def _slice_sparse(component: Any, start: Any, stop: Any) -> Any:
    import tensorflow as tf

    shape = component.dense_shape
    first = tf.cast(start, tf.int64)
    rows = tf.cast(stop, tf.int64) - first
    return tf.sparse.slice(
        component,
        start=tf.concat([[first], tf.zeros_like(shape[1:])], axis=0),
        size=tf.concat([[rows], shape[1:]], axis=0),
    )


class Dealt(NamedTuple):
    """How a share came to its rank, where a training step has to know.

    batch_size: its rows are this rank's slices of global batches of so many rows, one after the other.
    reshuffle: the seed with which the ranks exchange rows between epochs; None where they do not.
    """

    batch_size: int | None = None
    reshuffle: int | None = None


class ShareArray(np.ndarray):
    """Rows that belong to this rank alone: the other ranks hold the others, so nobody slices them again.

    The mark stays with whatever NumPy makes of the array (slices, `astype`, arithmetic, `np.concatenate`, `np.where`,
    ...). `dealt` stays where the rows do.
    """

    dealt: Dealt | None = None

    # Above ndarray's 0, so that the result of joining a share and a plain array is a share.
    __array_priority__ = 1.0

    def __array_finalize__(self, made_from: Any) -> None:
        if isinstance(made_from, ShareArray) and made_from.shape[:1] == self.shape[:1]:
            self.dealt = made_from.dealt

    def __array_wrap__(self, array: np.ndarray, context: Any = None, return_scalar: bool = False) -> Any:
        # Without this the sum of a share is a share of no dimensions instead of a number.
        return array[()] if array.ndim == 0 else array.view(ShareArray)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _marked(super().__array_function__(function, types, args, kwargs))


def _marked(result: Any) -> Any:
    if type(result) is np.ndarray and result.ndim:
        return result.view(ShareArray)
    if type(result) in (list, tuple):
        return type(result)(_marked(item) for item in result)
    return result


def as_share(array: Any) -> ShareArray:
    """`array` as a ShareArray, without a copy if it is an array already."""
    return np.asarray(array).view(ShareArray)


def is_share(x: Any) -> bool:
    """Whether `x` is an array of this rank's rows, a view of one, or a dataset that came from `mark_share`.

    A dataset made from a share by further steps (`map`, `prefetch`, ...) is one too.
    """
    if isinstance(x, np.ndarray):
        return _share_behind(x) is not None
    return any(getattr(dataset, "_matex_share", False) for dataset in pipeline_of(x))


def dealt(x: Any) -> Dealt:
    """How the rows of an array came to this rank; empty where that makes no difference."""
    share = _share_behind(x) if isinstance(x, np.ndarray) else None
    same_rows = share is not None and share.shape[:1] == x.shape[:1]
    return share.dealt if same_rows and share.dealt is not None else Dealt()


def _share_behind(x: Any) -> ShareArray | None:
    while x is not None:
        if isinstance(x, ShareArray):
            return x
        # np.asarray(share) is a plain view; its base is the share, if that owns its memory.
        x = getattr(x, "base", None)
    return None


def mark_share(dataset: Any) -> Any:
    """Mark a tf.data.Dataset as yielding this rank's own rows; returns it."""
    dataset._matex_share = True
    return dataset


def share_rows_taken(counts: Sequence[int], rows: int) -> list[int]:
    """How many rows of each rank are among the first `rows`, when ranks holding `counts` rows are consumed evenly.

    Row i of a rank with n rows stands at (i + 1/2) / n, and rows are taken in that order, at equal places the lower
    rank's first (Webster's method of apportionment, so a rank's number never falls as `rows` grows and is within one
    of its proportion for two ranks).
    """
    return list(_taken(tuple(int(count) for count in counts), int(rows)))


@lru_cache(maxsize=256)
def _taken(counts: tuple[int, ...], rows: int) -> tuple[int, ...]:
    total = sum(counts)
    rows = max(0, min(rows, total))
    if total == 0:
        return counts
    # All rows that stand at rows/total or before; off by at most half a row a rank, so few corrections follow.
    taken = [(2 * rows * count + total) // (2 * total) for count in counts]
    excess = sum(taken) - rows

    def place(rank: int, row: int) -> Fraction:
        return Fraction(2 * row + 1, 2 * counts[rank])

    if excess > 0:
        last = [(-place(rank, taken[rank] - 1), -rank) for rank in range(len(counts)) if taken[rank]]
        heapq.heapify(last)
        for _ in range(excess):
            rank = -heapq.heappop(last)[1]
            taken[rank] -= 1
            if taken[rank]:
                heapq.heappush(last, (-place(rank, taken[rank] - 1), -rank))
    elif excess < 0:
        following = [(place(rank, taken[rank]), rank) for rank in range(len(counts)) if taken[rank] < counts[rank]]
        heapq.heapify(following)
        for _ in range(-excess):
            rank = heapq.heappop(following)[1]
            taken[rank] += 1
            if taken[rank] < counts[rank]:
                heapq.heappush(following, (place(rank, taken[rank]), rank))
    return tuple(taken)


def share_step_rows(
    counts: Sequence[int], step: int, batch_size: int, dealt_batch_size: int | None = None
) -> list[int]:
    """Rows of each rank in global step `step` (from 0) when shares of `counts` rows are consumed `batch_size` a step.

    They sum to `batch_size`, in the last step to what is left, and each rank gives its rows in order, each once. A rank
    gives 0 rows to a step where its proportion is less than one. Shares that were dealt in batches of
    `dealt_batch_size`, the same as `batch_size`, give the very rows of each batch.
    """

    def taken(rows: int) -> list[int]:
        if dealt_batch_size is None:
            return share_rows_taken(counts, rows)
        return batch_rows_taken(sum(counts), dealt_batch_size, len(counts), rows)

    before, after = taken(step * batch_size), taken((step + 1) * batch_size)
    return [b - a for a, b in zip(before, after, strict=True)]


def batch_rows_taken(total: int, batch_size: int, size: int, rows: int) -> list[int]:
    """How many rows of each rank are among the first `rows` of `total`, when of every `batch_size` rows in turn each
    rank has its slice. `rows` is `total` or a multiple of `batch_size`.
    """
    rows = max(0, min(rows, total))
    whole, rest = divmod(rows, batch_size)
    slices = [(rows_of(batch_size, rank, size), rows_of(rest, rank, size)) for rank in range(size)]
    return [whole * (stop - start) + rest_stop - rest_start for (start, stop), (rest_start, rest_stop) in slices]


def shard(x: Any, *, rank: int | None = None, size: int | None = None) -> Any:
    """This rank's part of `x`, known to the library as a share, so that it is not sliced again.

    An array or eager tensor gives this rank's contiguous rows as a ShareArray (`rows_of`); tuples and dicts of arrays
    give tuples and dicts. A tf.data.Dataset of batches gives the dataset of this rank's slice of each batch
    (`slice_bounds`: where a batch has fewer rows than there are ranks, a rank without rows yields the first row,
    which a training step weighs 0). What is a share already comes back as it is. `rank` and `size` default to this
    process's place in the world. Raises TypeError for anything else, ValueError for an array without rows, arrays of
    different numbers of rows, or a dataset that isn't batched.
    """
    if rank is None or size is None:
        from matex_tf.world import world

        here = world.current()
        rank, size = (here.rank if rank is None else rank), (here.size if size is None else size)
    if not 0 <= rank < size:
        raise ValueError(f"shard: rank has to be 0 to size - 1; given rank={rank}, size={size}")
    if is_share(x):
        return x
    if isinstance(x, dict):
        _check_rows(x)
        parts = copy.copy(x)
        parts.update({key: shard(value, rank=rank, size=size) for key, value in x.items()})
        return parts
    if isinstance(x, tuple):
        _check_rows(dict(enumerate(x)))
        parts = [shard(value, rank=rank, size=size) for value in x]
        return tuple(parts) if type(x) is tuple else type(x)(*parts)
    if hasattr(x, "element_spec") and hasattr(x, "map"):
        return _shard_dataset(x, rank, size)
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError("shard: expected an array without a mask, which would be lost; fill it: shard(x.filled(...))")
    if isinstance(x, np.ndarray) or _is_eager(x):
        array = np.asarray(x)
        if array.ndim == 0:
            raise ValueError("shard: an array of at least one dimension was expected; this one has none, so no rows")
        start, stop = rows_of(len(array), rank, size)
        return as_share(array[start:stop])
    raise TypeError(
        "shard: expected a NumPy array, an eager tensor, a tuple or dict of them, or a tf.data.Dataset; "
        f"given a {type(x).__name__}"
    )


def _check_rows(arrays: dict) -> None:
    """Row i of one array belongs to row i of the other, so their numbers of rows are one; shares have been dealt."""
    rows = {
        key: value.shape[0]
        for key, value in arrays.items()
        if not is_share(value) and (isinstance(value, np.ndarray) or _is_eager(value)) and len(value.shape)
    }
    if len(set(rows.values())) > 1:
        raise ValueError(f"shard: expected arrays of one number of rows; given {rows}")


def _shard_dataset(dataset: Any, rank: int, size: int) -> Any:
    import tensorflow as tf

    if is_batched(dataset) is False:
        raise ValueError("shard: the dataset yields single elements; put .batch(...) before shard(dataset)")

    def mine(*batch: Any) -> Any:
        start, stop, _ = slice_bounds(batch_rows(batch), rank, size)
        sliced = tf.nest.map_structure(lambda component: slice_rows(component, start, stop), batch)
        return sliced if len(sliced) > 1 else sliced[0]

    sliced = mark_share(dataset.map(mine))
    if size > 1:
        # A training loop takes the slices from here, because it needs the weight of each beside it.
        sliced._matex_whole = dataset
    return sliced


def batch_rows(batch: Any) -> Any:
    """The number of rows of a batch (any structure of arrays and tensors): the first dimension of its first component
    that has one. An int for NumPy arrays, a scalar int64 tensor for tensors.

    Raises ValueError if no component has a dimension.
    """
    import tensorflow as tf

    for component in tf.nest.flatten(batch):
        if isinstance(component, tf.SparseTensor):
            return component.dense_shape[0]
        if isinstance(component, tf.RaggedTensor):
            return tf.cast(component.nrows(), tf.int64)
        shape = getattr(component, "shape", None)
        if shape is None or (getattr(shape, "rank", 0) is not None and len(shape) == 0):
            continue
        return len(component) if isinstance(component, np.ndarray) else tf.shape(component, tf.int64)[0]
    raise ValueError("a batch without rows: no component of it has a dimension")


def is_batched(dataset: Any) -> bool | None:
    """Whether the elements of a tf.data.Dataset are batches: True or False where its steps tell, None where they do not
    (a generator may yield either).
    """
    for step in pipeline_of(dataset):
        name = type(step).__name__.lower()
        if "unbatch" in name or "tensorslice" in name or "range" in name:
            return False
        if "batch" in name or "groupbywindow" in name:
            return True
    return None


def pipeline_of(x: Any) -> list[Any]:
    """A dataset and all it is made from, nearest first; empty for anything else."""
    found: list[Any] = []
    waiting = [x] if hasattr(x, "element_spec") and hasattr(x, "_inputs") else []
    while waiting:
        dataset = waiting.pop(0)
        found.append(dataset)
        # tf.compat.v1 datasets hold the real one.
        inner = getattr(dataset, "_dataset", None)
        waiting += [inner] if inner is not None else list(dataset._inputs())
    return found


def _is_tensor(x: Any) -> bool:
    tf = sys.modules.get("tensorflow")
    return tf is not None and tf.is_tensor(x)


def _is_eager(x: Any) -> bool:
    """Whether `x` is a dense tensor, or a variable, that has a value now."""
    tf = sys.modules.get("tensorflow")
    return (
        tf is not None and isinstance(x, (tf.Tensor, tf.Variable)) and hasattr(x, "numpy") and x.shape.rank is not None
    )


def _minimum(a: Any, b: Any) -> Any:
    if not (_is_tensor(a) or _is_tensor(b)):
        return min(a, b)
    import tensorflow as tf

    dtype = a.dtype if _is_tensor(a) else b.dtype
    return tf.minimum(tf.cast(a, dtype), tf.cast(b, dtype))
