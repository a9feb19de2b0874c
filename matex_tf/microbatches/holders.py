"""Accumulators: they combine the results of a region's parts, turn by turn of the loop over the parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf.rewrite.gathering import swap_axes
from matex_tf.rewrite.nodes import Value
from matex_tf.rewrite.placement import HALF, PARTIAL, SHARDED, SIZES


class _Last:
    """Keeps a value that is equal in each part."""

    def __init__(self, value: Value):
        self.value = value

    def begin(self) -> tuple[list[Any], list[Any]]:
        """The tensors before the first part, and the shapes that they keep."""
        import tensorflow as tf

        return [tf.zeros([], self.value.dtype)], [tf.TensorShape(None)]

    def add(self, rows: Any, held: Sequence[Any], made: Any) -> list[Any]:
        """The tensors after a part. rows: a copy whose slice is that of the part. made: the result of the part."""
        return [made]

    def finish(self, held: Sequence[Any]) -> Any:
        return held[0]


class _Sizes(_Last):
    """Adds up numbers of rows that masks selected; other numbers of rows are known for the whole slice."""

    def add(self, rows: Any, held: Sequence[Any], made: Any) -> list[Any]:
        import tensorflow as tf

        sizes = self.value.placement.sizes
        chosen = [one.rows is not None and one.rows.chosen is not None for one in sizes]
        whole = rows.make_sizes_whole(made, self.value.placement)
        return [tf.where(chosen[0] if made.shape.rank == 0 else chosen, held[0] + made, whole)]


class _Sum(_Last):
    """Adds up partial sums, in float32 if they are of half precision, so that they are rounded once; and combines
    extremes.
    """

    def begin(self) -> tuple[list[Any], list[Any]]:
        import tensorflow as tf

        dtype = tf.float32 if self.value.dtype.name in HALF else self.value.dtype
        shape = self.value.shape
        is_known = shape is not None and None not in shape
        neutral = tf.constant(_find_neutral(self.value.placement.reduction, dtype), dtype)
        begun = tf.fill(shape, neutral) if is_known else neutral
        return [begun], [tf.TensorShape(shape if is_known else None)]

    def add(self, rows: Any, held: Sequence[Any], made: Any) -> list[Any]:
        import tensorflow as tf

        by = self.value.placement.reduction
        if self.value.dtype.is_bool:
            return [(tf.logical_or if by == "max" else tf.logical_and)(held[0], made)]
        return [{"sum": tf.add, "max": tf.maximum, "min": tf.minimum}[by](held[0], tf.cast(made, held[0].dtype))]

    def finish(self, held: Sequence[Any]) -> Any:
        import tensorflow as tf

        return tf.cast(held[0], self.value.dtype)


def _find_neutral(by: str, dtype: Any) -> Any:
    if by == "sum":
        return 0
    if dtype.is_bool:
        return by == "min"
    if dtype.is_floating:
        return float("-inf" if by == "max" else "inf")
    return dtype.min if by == "max" else dtype.max


class _Rows(_Last):
    """Concatenates rows, block by block."""

    def begin(self) -> tuple[list[Any], list[Any]]:
        import tensorflow as tf

        blocks = self.value.placement.rows.blocks
        lists = [
            tf.raw_ops.EmptyTensorList(element_shape=-1, max_num_elements=-1, element_dtype=self.value.dtype)
            for _ in blocks
        ]
        return lists, [tf.TensorShape([])] * len(lists)

    def add(self, rows: Any, held: Sequence[Any], made: Any) -> list[Any]:
        import tensorflow as tf

        placement = self.value.placement
        turned, blocks = swap_axes(made, placement.axis), placement.rows.blocks
        pieces = [turned]
        if len(blocks) > 1:
            pieces = tf.split(turned, [block * rows.batch_slice.count for block in blocks], num=len(blocks))
        return [tf.raw_ops.TensorListPushBack(input_handle=one, tensor=piece) for one, piece in zip(held, pieces)]

    def finish(self, held: Sequence[Any]) -> Any:
        import tensorflow as tf

        placement, shape = self.value.placement, self.value.shape
        sizes: Any = -1
        if shape is not None:
            turned = [None if at == placement.axis else size for at, size in enumerate(shape)]
            turned[0], turned[placement.axis] = turned[placement.axis], turned[0]
            sizes = [-1 if size is None else size for size in turned]
        found = [
            tf.raw_ops.TensorListConcatV2(
                input_handle=one,
                element_shape=tf.constant(sizes, tf.int64),
                leading_dims=tf.constant([], tf.int64),
                element_dtype=self.value.dtype,
            )[0]
            for one in held
        ]
        return swap_axes(found[0] if len(found) == 1 else tf.concat(found, 0), placement.axis)


def make_holder(value: Value) -> _Last:
    return {SHARDED: _Rows, PARTIAL: _Sum, SIZES: _Sizes}.get(value.placement.kind, _Last)(value)
