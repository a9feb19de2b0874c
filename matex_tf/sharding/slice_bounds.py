"""Computes the bounds of slices and shards: contiguous rows of a batch, or of an array, for each rank.

With 2 ranks and 5 rows, rank 0 gets rows 0-2 and rank 1 rows 3-4. No function communicates. Arguments are numbers and
arrays, or tensors. With numbers and arrays nothing imports TensorFlow, so readers of files start without it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from matex_tf.lazy import tf


def deal_block(n: Any, rank: int, ratios: Any) -> tuple[Any, Any]:
    """(start, stop) of the rows of `rank` if `n` rows are dealt to the ranks in contiguous blocks.

    Args:
        n: the number of rows, an int; with equal blocks also a scalar integer tensor. (For other ratios, the op
            `ops.deal_rows` deals a number of rows that is a tensor.)
        rank: the number of the rank, an int.
        ratios: the ratios of the ranks, integers: a rank gets its ratio divided by the sum of the ratios. If `ratios`
            is an int, it is the number of ranks that get equal blocks; further ranks get no rows.

    Each rank gets its proportion of the rows, rounded down. The remaining rows go to the ranks that lost most by
    rounding, one row each. Of ranks that lost equally, the first come first. So blocks of equal ratios differ by at
    most one row, and earlier ranks have the longer blocks. With fewer rows than ranks, the last ranks have no rows
    (start == stop).
    """
    if isinstance(ratios, int):
        if rank >= ratios:
            return n, n
        base, extra = n // ratios, n % ratios
        return rank * base + _take_minimum(rank, extra), (rank + 1) * base + _take_minimum(rank + 1, extra)
    rows = count_dealt_rows(n, ratios)
    return sum(rows[:rank]), sum(rows[: rank + 1])


def count_dealt_rows(n: int, ratios: Sequence[int]) -> list[int]:
    """The number of rows of each rank if `n` rows are dealt as in `deal_block`."""
    total = sum(ratios)
    rows = [n * ratio // total for ratio in ratios]
    order = sorted(range(len(ratios)), key=lambda rank: -(n * ratios[rank] % total))
    for rank in order[: n - sum(rows)]:
        rows[rank] += 1
    return rows


def find_slice_bounds(n: Any, rank: int, ratios: Any) -> tuple[Any, Any, Any]:
    """(start, stop, has_rows) of the slice of a batch of `n` rows that `rank` computes.

    A model need not accept an empty batch. So a rank without rows computes the first row of the batch, and adds 0 to
    every sum; the result is then (0, 1, False). Only an empty batch has an empty slice, (0, 0, False).

    n, ratios: see `deal_block`. If `n` is an int, the bounds are ints and has_rows is a bool. If `n` is a tensor, the
        bounds are scalar tensors of its dtype, and has_rows is a scalar bool tensor.
    """
    start, stop = deal_block(n, rank, ratios)
    if not _is_tensor(start):
        return (start, stop, True) if stop > start else (0, min(1, n), False)
    has_rows = stop > start
    return tf.where(has_rows, start, tf.zeros_like(start)), tf.where(has_rows, stop, _take_minimum(1, n)), has_rows


def slice_rows(component: Any, start: Any, stop: Any) -> Any:
    """Rows `start` to `stop` of one component of a batch, along its first dimension, in a function of a dataset.

    `component` is a tf.Tensor, tf.RaggedTensor or tf.SparseTensor; the bounds are scalar integer tensors. None, and
    components without dimensions, are returned unchanged.

    Raises TypeError for a component of another type.
    """
    if component is None:
        return None
    if isinstance(component, tf.SparseTensor):
        return _slice_sparse(component, start, stop)
    if not hasattr(component, "shape"):
        raise TypeError(
            "a component of a batch has to be a tensor to be sliced into the ranks' rows; "
            f"this one is a {type(component).__name__}"
        )
    if component.shape.rank is None:  # only when the graph runs is it known whether the component has rows
        return tf.cond(tf.rank(component) > 0, lambda: component[start:stop], lambda: tf.identity(component))
    return component[start:stop] if component.shape.rank else component


def _slice_sparse(component: Any, start: Any, stop: Any) -> Any:
    first, other_sizes = tf.cast(start, tf.int64), component.dense_shape[1:]
    size = tf.concat([[tf.cast(stop, tf.int64) - first], other_sizes], axis=0)
    return tf.sparse.slice(component, tf.concat([[first], tf.zeros_like(other_sizes)], axis=0), size)


def count_batch_rows(batch: Any) -> Any:
    """The number of rows of a batch, a structure of tensors, as a scalar int64 tensor.

    It is the length of the first component that has a dimension. Raises ValueError if no component has one.
    """
    for component in tf.nest.flatten(batch):
        if isinstance(component, tf.SparseTensor):
            return component.dense_shape[0]
        if isinstance(component, tf.RaggedTensor):
            return tf.cast(component.nrows(), tf.int64)
        if hasattr(component, "shape") and component.shape.rank != 0:
            return tf.shape(component, tf.int64)[0]
    raise ValueError("a batch without rows: no component of it has a dimension")


def is_batched(dataset: Any) -> bool | None:
    """Whether the elements of a tf.data.Dataset are batches, by the nearest stage that shows it. None if no stage
    shows it, for example if the elements come from a generator.
    """
    for stage in list_pipeline(dataset):
        name = type(stage).__name__.lower()
        if "unbatch" in name or "tensorslice" in name or "range" in name:
            return False
        if "batch" in name or "groupbywindow" in name:
            return True
    return None


def list_pipeline(x: Any) -> list[Any]:
    """A dataset and the datasets that it is made from, nearest first; empty for any other object."""
    datasets: list[Any] = []
    pending = [x] if hasattr(x, "element_spec") and hasattr(x, "_inputs") else []
    while pending:
        dataset = pending.pop(0)
        datasets.append(dataset)
        wrapped_dataset = getattr(dataset, "_dataset", None)  # of a wrapper of tf.compat.v1
        pending += [wrapped_dataset] if wrapped_dataset is not None else list(dataset._inputs())
    return datasets


def _is_tensor(value: Any) -> bool:
    tf = sys.modules.get("tensorflow")
    return tf is not None and tf.is_tensor(value)


def _take_minimum(a: Any, b: Any) -> Any:
    if not (_is_tensor(a) or _is_tensor(b)):
        return min(a, b)
    dtype = a.dtype if _is_tensor(a) else b.dtype
    return tf.minimum(tf.cast(a, dtype), tf.cast(b, dtype))
