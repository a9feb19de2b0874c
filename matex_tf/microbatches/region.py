"""A region in the copy of a step: a loop over the parts of this rank's slice (`cutting`).

The tensors of one part are in memory at a time. Accumulators (`holders`) combine the results of the parts.
"""

from __future__ import annotations

import copy as copies
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from matex_tf.microbatches.cutting import Region
from matex_tf.microbatches.holders import make_accumulator
from matex_tf.rewrite.bodies import Body
from matex_tf.rewrite.nodes import Value
from matex_tf.rewrite.placement import PARTIAL, SIZES, WHOLE, Placement
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.sharing import Slice


class Sizes(Protocol):
    """The number of rows of each part of a region; int64 scalars in the graph."""

    def begin(self, count: Any, rows: Sequence[Any]) -> Any:
        """The size of the first part.

        Args:
            count: the number of rows of the rank.
            rows: the sizes of the other dimensions of each input with rows.
        """

    def go_on(self, size: Any, count: Any, part: Any, sums: Sequence[Any], rows: Sequence[Any]) -> Any:
        """The size of the next part.

        Args:
            size: the value that `begin` or `go_on` returned for the last part.
            part: the number of rows of the last part, at most `size`.
            sums: the accumulated sums.
            rows: the rows that the last part computed.
        """


def make_emit(region: Region, sizes: Sizes) -> Callable[..., list[Any]]:
    """Returns the function that computes the outputs of a region's node in a copy."""

    def emit(copy: Any, *inputs: Any) -> list[Any]:
        return _compute_parts(copy, region, sizes, inputs)

    return emit


def _compute_parts(copy: Any, region: Region, sizes: Sizes, inputs: Sequence[Any]) -> list[Any]:
    """The loop over the parts. Its variables: the first row of the part, its size, and the accumulators' tensors."""
    import tensorflow as tf

    count = copy.batch_slice.count
    shapes = [
        _drop_axis(tf.shape(tensor, tf.int64), value.placement.axis)
        for (value, need), tensor in zip(region.takes, inputs)
        if need is None and value.placement.is_sharded
    ]
    accumulators = [make_accumulator(value) for value in region.gives]
    starts = [accumulator.begin() for accumulator in accumulators]
    lengths = [len(tensors) for tensors, _ in starts]

    def compute_part(start: Any, size: Any, *accumulated: Any) -> list[Any]:
        part = tf.minimum(size, count - start)
        part_copy = copies.copy(copy)
        part_copy.batch_slice = Slice(start, part, count, copy.batch_slice.contributes, copy.batch_slice.keeps)
        results = _copy_region(copy, region, part_copy, inputs)
        after: list[Any] = []
        for accumulator, tensors, result in zip(accumulators, _split(accumulated, lengths), results):
            after += accumulator.add(part_copy, tensors, result)
        next_size = sizes.go_on(size, count, part, *_sort_results(region, results, after, lengths))
        return [start + part, next_size, *after]

    zero = tf.zeros([], tf.int64)
    _, _, *accumulated = tf.while_loop(
        lambda start, *_: start < count,
        compute_part,
        [zero, sizes.begin(count, shapes), *(tensor for tensors, _ in starts for tensor in tensors)],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([]), *(shape for _, kept in starts for shape in kept)],
        parallel_iterations=1,
    )
    outputs = []
    for accumulator, tensors, value in zip(accumulators, _split(accumulated, lengths), region.gives):
        output = accumulator.finish(tensors)
        if value.shape is not None:
            output.set_shape(value.shape)
        outputs.append(tf.identity(output, value.tensor.op.name.rsplit("/", 1)[-1].lstrip("_")))
    return outputs


def _split(tensors: Sequence[Any], lengths: Sequence[int]) -> list[Sequence[Any]]:
    ends = list(itertools.accumulate(lengths))
    return [tensors[end - length : end] for end, length in zip(ends, lengths)]


def _drop_axis(shape: Any, axis: int) -> Any:
    import tensorflow as tf

    return tf.concat([shape[:axis], shape[axis + 1 :]], 0)


def _sort_results(
    region: Region, results: Sequence[Any], after: Sequence[Any], lengths: Sequence[int]
) -> tuple[list[Any], list[Any]]:
    """The accumulated sums after a part, and the rows that the part computed."""
    sums, rows = [], []
    for value, result, tensors in zip(region.gives, results, _split(after, lengths)):
        if value.placement.is_sharded:
            rows.append(result)
        else:
            sums.append(tensors[0])
    return sums, rows


def _copy_region(copy: Any, region: Region, part_copy: Any, inputs: Sequence[Any]) -> list[Any]:
    """The results of a region for a part: a copy of its ops.

    Args:
        copy: the copy of the step, whose slice are the rank's rows of the batch.
        part_copy: a `Copy` whose slice are the part's rows of the rank's rows.
    """
    import tensorflow as tf

    start, count, batch_slice = part_copy.batch_slice.first, part_copy.batch_slice.count, copy.batch_slice
    is_first = tf.equal(start, 0)
    body_copy = copies.copy(copy)  # its slice are the part's rows of the batch
    body_copy.transform = None
    body_copy.batch_slice = Slice(
        batch_slice.first + start,
        count,
        batch_slice.total,
        batch_slice.contributes,
        tf.logical_and(batch_slice.keeps, is_first),
    )
    gives = [value.placement for value in region.gives]
    body = Body(body_copy, Program(region.nodes, [], region.gives, region.awaited), gives)
    for node in body.program.nodes:
        node.level = 0
    for (value, need), tensor in zip(region.takes, inputs):
        _pass_input(body, part_copy, value, need, tensor, is_first)
    results = body.build_levels([])
    with tf.control_dependencies(body.after):
        return [tf.identity(result) for result in results] if body.after else results


def _pass_input(body: Body, part_copy: Any, value: Value, need: Placement | None, tensor: Any, is_first: Any) -> None:
    """Pass an input of the region to the copy of its ops: rows of the part, and partial sums to the first part only."""
    import tensorflow as tf

    placement = value.placement
    if need is not None:
        if placement.kind == SIZES:
            body.brought[id(value), WHOLE] = tensor
        else:
            body.whole[id(value)] = tensor
        return
    if placement.is_sharded:
        tensor = part_copy.slice_rows(tensor, placement)
    elif placement.kind == PARTIAL and placement.reduction == "sum":
        tensor = tf.where(is_first, tensor, tf.zeros_like(tensor))
    elif placement.kind == SIZES:
        # `make_sizes_whole` computes sizes for `total` rows from those for `count` rows: here from the rank's to the
        # part.
        inverse, part = copies.copy(part_copy), part_copy.batch_slice
        inverse.batch_slice = Slice(part.first, part.total, part.count, True, True)
        tensor = inverse.make_sizes_whole(tensor, placement)
    body.tensors[id(value)] = tensor
