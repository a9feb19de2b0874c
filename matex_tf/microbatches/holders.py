"""Accumulators: they combine the results of a region's parts, one part after the other (`region`).

An accumulator of a value has some tensors, which the loop over the parts passes from part to part: `begin` returns the
first ones, `add` those after a part, and `finish` computes the value from the last ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf.rewrite.gathering import swap_axes
from matex_tf.rewrite.nodes import Value
from matex_tf.rewrite.placement import HALF, PARTIAL, SHARDED, SIZES


class _Last:
    """The accumulator of a value that is equal in each part; the base class of the others."""

    def __init__(self, value: Value):
        self.value = value

    def begin(self) -> tuple[list[Any], list[Any]]:
        """The tensors before the first part, and their shapes in all parts."""
        import tensorflow as tf

        return [tf.zeros([], self.value.dtype)], [tf.TensorShape(None)]

    def add(self, part_copy: Any, tensors: Sequence[Any], result: Any) -> list[Any]:
        """The tensors after a part.

        Args:
            part_copy: a `Copy` whose slice are the rows of the part.
            tensors: those before the part.
            result: the value of the part.
        """
        return [result]

    def finish(self, tensors: Sequence[Any]) -> Any:
        return tensors[0]


class _Sizes(_Last):
    """Adds up numbers of rows that masks selected; other numbers of rows are known for the whole slice."""

    def add(self, part_copy: Any, tensors: Sequence[Any], result: Any) -> list[Any]:
        import tensorflow as tf

        sizes = self.value.placement.sizes
        is_selected = [one.rows is not None and one.rows.chosen is not None for one in sizes]
        whole = part_copy.make_sizes_whole(result, self.value.placement)
        return [tf.where(is_selected[0] if result.shape.rank == 0 else is_selected, tensors[0] + result, whole)]


class _Sum(_Last):
    """Combines partial sums, maxima and minima. Sums of half precision are added in float32, so that they are rounded
    once.
    """

    def begin(self) -> tuple[list[Any], list[Any]]:
        import tensorflow as tf

        dtype = tf.float32 if self.value.dtype.name in HALF else self.value.dtype
        shape = self.value.shape
        is_known = shape is not None and None not in shape
        neutral = tf.constant(_find_neutral(self.value.placement.reduction, dtype), dtype)
        start = tf.fill(shape, neutral) if is_known else neutral
        return [start], [tf.TensorShape(shape if is_known else None)]

    def add(self, part_copy: Any, tensors: Sequence[Any], result: Any) -> list[Any]:
        import tensorflow as tf

        by, total = self.value.placement.reduction, tensors[0]
        if self.value.dtype.is_bool:
            return [(tf.logical_or if by == "max" else tf.logical_and)(total, result)]
        return [{"sum": tf.add, "max": tf.maximum, "min": tf.minimum}[by](total, tf.cast(result, total.dtype))]

    def finish(self, tensors: Sequence[Any]) -> Any:
        import tensorflow as tf

        return tf.cast(tensors[0], self.value.dtype)


def _find_neutral(by: str, dtype: Any) -> Any:
    """The neutral element of "sum", "max" or "min"."""
    if by == "sum":
        return 0
    if dtype.is_bool:
        return by == "min"
    if dtype.is_floating:
        return float("-inf" if by == "max" else "inf")
    return dtype.min if by == "max" else dtype.max


class _Rows(_Last):
    """Concatenates rows, block by block, in one list of tensors for each block of the value's rows."""

    def begin(self) -> tuple[list[Any], list[Any]]:
        import tensorflow as tf

        blocks = self.value.placement.rows.blocks
        lists = [
            tf.raw_ops.EmptyTensorList(element_shape=-1, max_num_elements=-1, element_dtype=self.value.dtype)
            for _ in blocks
        ]
        return lists, [tf.TensorShape([])] * len(lists)

    def add(self, part_copy: Any, tensors: Sequence[Any], result: Any) -> list[Any]:
        import tensorflow as tf

        placement = self.value.placement
        rows_first, blocks = swap_axes(result, placement.axis), placement.rows.blocks
        parts_of_blocks = [rows_first]
        if len(blocks) > 1:
            sizes = [block * part_copy.batch_slice.count for block in blocks]
            parts_of_blocks = tf.split(rows_first, sizes, num=len(blocks))
        return [
            tf.raw_ops.TensorListPushBack(input_handle=one, tensor=part) for one, part in zip(tensors, parts_of_blocks)
        ]

    def finish(self, tensors: Sequence[Any]) -> Any:
        import tensorflow as tf

        placement, shape = self.value.placement, self.value.shape
        element_shape: Any = -1
        if shape is not None:
            rows_first = [None if axis == placement.axis else size for axis, size in enumerate(shape)]
            rows_first[0], rows_first[placement.axis] = rows_first[placement.axis], rows_first[0]
            element_shape = [-1 if size is None else size for size in rows_first]
        blocks = [
            tf.raw_ops.TensorListConcatV2(
                input_handle=one,
                element_shape=tf.constant(element_shape, tf.int64),
                leading_dims=tf.constant([], tf.int64),
                element_dtype=self.value.dtype,
            )[0]
            for one in tensors
        ]
        return swap_axes(blocks[0] if len(blocks) == 1 else tf.concat(blocks, 0), placement.axis)


def make_accumulator(value: Value) -> _Last:
    return {SHARDED: _Rows, PARTIAL: _Sum, SIZES: _Sizes}.get(value.placement.kind, _Last)(value)
