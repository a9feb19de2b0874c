"""Accumulators: they combine the results of microbatches, parts of a rank's rows, to the results for all its rows.

`region` builds a region, a set of ops, as a `tf.while_loop` that computes the ops for one part after the other. Each
result of the region has an accumulator: for a partial sum, it adds up the sums of the parts; for rows, it keeps a list
of the rows of the parts. Its tensors are variables of the loop: `begin` returns them before all parts, `add` after a
part, and `finish` computes the result from the last ones.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.gathering import join_blocks, split_blocks
from matex_tf.rewrite.nodes import Value
from matex_tf.rewrite.placement import HALF, WHOLE, Partial, Sharded, Sizes
from matex_tf.steps.exchanger import find_neutral


class _Last:
    """The accumulator of a value that is equal in each part; the base class of the others, which know the placement."""

    def __init__(self, value: Value, placement: Any = WHOLE):
        self.value, self.placement = value, placement

    def begin(self) -> tuple[list[Any], list[Any]]:
        """The tensors before the first part, and shapes that hold in all parts (`shape_invariants`)."""
        return [tf.zeros([], self.value.dtype)], [tf.TensorShape(None)]

    def add(self, part_copy: Any, tensors: Sequence[Any], result: Any) -> list[Any]:
        """The tensors after a part, from the tensors before it and its `result`.

        part_copy: the `rewrite.emit.Copy` that has built the ops of the part.
        """
        return [result]

    def finish(self, tensors: Sequence[Any]) -> Any:
        return tensors[0]


class _Sizes(_Last):
    """The accumulator of sizes, the numbers of a tensor's shape (`placement.Sizes`).

    If a mask selected rows, their number depends on the data: it is added up over the parts. Any other number of rows
    follows from the number of the rank's rows (`make_sizes_whole`).
    """

    def add(self, part_copy: Any, tensors: Sequence[Any], result: Any) -> list[Any]:
        is_selected = [size.counts_chosen for size in self.placement.sizes]
        whole_sizes = part_copy.make_sizes_whole(result, self.placement)
        mask = is_selected[0] if result.shape.rank == 0 else is_selected  # one size, or a list of sizes
        return [tf.where(mask, tensors[0] + result, whole_sizes)]


class _Sum(_Last):
    """Combines partial sums, maxima and minima; sums of half precision in float32, so that they are rounded once."""

    def begin(self) -> tuple[list[Any], list[Any]]:
        dtype = tf.float32 if self.value.dtype.name in HALF else self.value.dtype
        shape = self.value.shape
        is_known = shape is not None and None not in shape
        neutral = tf.constant(find_neutral(self.placement.reduction, dtype), dtype)
        total = tf.fill(shape, neutral) if is_known else neutral
        return [total], [tf.TensorShape(shape if is_known else None)]

    def add(self, part_copy: Any, tensors: Sequence[Any], result: Any) -> list[Any]:
        reduction, total = self.placement.reduction, tensors[0]
        if self.value.dtype.is_bool:
            return [(tf.logical_or if reduction == "max" else tf.logical_and)(total, result)]
        return [{"sum": tf.add, "max": tf.maximum, "min": tf.minimum}[reduction](total, tf.cast(result, total.dtype))]

    def finish(self, tensors: Sequence[Any]) -> Any:
        return tf.cast(tensors[0], self.value.dtype)


class _Rows(_Last):
    """Concatenates rows. If they consist of blocks, such as two concatenated batches (`Rows.blocks`), the results of
    the parts are concatenated block by block: `begin` makes a list of tensors for each block.
    """

    def begin(self) -> tuple[list[Any], list[Any]]:
        blocks = self.placement.rows.blocks
        make_list = functools.partial(tf.raw_ops.EmptyTensorList, element_shape=-1, max_num_elements=-1)  # -1: any
        return [make_list(element_dtype=self.value.dtype) for _ in blocks], [tf.TensorShape([])] * len(blocks)

    def add(self, part_copy: Any, tensors: Sequence[Any], result: Any) -> list[Any]:
        blocks = split_blocks(result, self.placement.axis, self.placement.rows, part_copy.batch_slice.count)
        push = tf.raw_ops.TensorListPushBack
        return [push(input_handle=handle, tensor=block) for handle, block in zip(tensors, blocks)]

    def finish(self, tensors: Sequence[Any]) -> Any:
        axis, shape = self.placement.axis, self.value.shape
        element_shape: Any = -1  # of any number of dimensions
        if shape is not None:
            element_shape = [-1 if size is None else size for size in shape]
            # In a block, the axis of rows is in front (`split_blocks`); a part may have any number of rows.
            element_shape[axis], element_shape[0] = element_shape[0], -1
        sizes, no_dimensions = tf.constant(element_shape, tf.int64), tf.constant([], tf.int64)
        options = {"element_shape": sizes, "leading_dims": no_dimensions, "element_dtype": self.value.dtype}
        blocks = [tf.raw_ops.TensorListConcatV2(input_handle=handle, **options)[0] for handle in tensors]
        return join_blocks(blocks, axis)


def make_accumulator(value: Value) -> _Last:
    placement = value.placement
    if isinstance(placement, Sharded):
        return _Rows(value, placement)
    if isinstance(placement, Partial):
        return _Sum(value, placement)
    return _Sizes(value, placement) if isinstance(placement, Sizes) else _Last(value)
