"""Builds a region, a set of ops of a step, as a loop over the parts of this rank's slice (`cutting`).

So only the tensors of one part are in memory at a time. With 32 rows and parts of 8, the loop has 4 turns. Accumulators
(`accumulators`) combine the results of the parts.

A copy (`emit.Copy`) builds the ops of a step for one slice of the batch. A part is to the rank's rows as a slice is to
the batch. So `batch_slice` of a `part_copy` is the part, with the rank's rows in place of the batch.
"""

from __future__ import annotations

import copy as copies
from collections.abc import Sequence
from typing import Any

from matex_tf.lazy import tf
from matex_tf.microbatches.accumulators import make_accumulator
from matex_tf.microbatches.cutting import Region
from matex_tf.microbatches.sizes import Fitting
from matex_tf.rewrite.bodies import Body
from matex_tf.rewrite.nodes import Value
from matex_tf.rewrite.placement import WHOLE, Partial, Placement, Sharded, Sizes
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.sharing import Slice


def compute_parts(region: Region, sizes: Fitting | int, copy: Any, *inputs: Any) -> list[Any]:
    """The outputs of a region's node in a copy, computed by a loop over the parts.

    The variables of the loop: `start`, the index of the part's first row among the rank's rows; `size`, the size of the
    part; and the accumulators' tensors.

    sizes: chooses the size of each part; a number: all parts have this size.
    """
    count = copy.batch_slice.count  # the number of the rank's rows
    shapes_and_axes = [
        (tf.shape(tensor, tf.int64), value.placement.axis)
        for (value, need), tensor in zip(region.takes, inputs)
        if need is None and isinstance(value.placement, Sharded)
    ]
    # For each input with rows, the shape of one row.
    row_shapes = [tf.concat([shape[:axis], shape[axis + 1 :]], 0) for shape, axis in shapes_and_axes]
    accumulators = [make_accumulator(value) for value in region.gives]
    are_rows = [isinstance(value.placement, Sharded) for value in region.gives]

    def compute_part(start: Any, size: Any, accumulated: Sequence[Sequence[Any]]) -> list[Any]:
        part_rows = tf.minimum(size, count - start)
        part_copy = copies.copy(copy)
        part_copy.batch_slice = copy.batch_slice._replace(first=start, count=part_rows, total=count)
        results = _copy_region(copy, region, part_copy, inputs)
        accumulator_inputs = zip(accumulators, accumulated, results)
        next_accumulated = [
            accumulator.add(part_copy, tensors, result) for accumulator, tensors, result in accumulator_inputs
        ]
        # After each part, `sizes` measures the memory, and chooses the size of the next part.
        sums = [tensors[0] for tensors, has_rows in zip(next_accumulated, are_rows) if not has_rows]
        rows = [result for result, has_rows in zip(results, are_rows) if has_rows]
        next_size = size if isinstance(sizes, int) else sizes.go_on(size, count, part_rows, sums, rows)
        return [start + part_rows, next_size, next_accumulated]

    first_size = tf.constant(sizes, tf.int64) if isinstance(sizes, int) else sizes.begin(count, row_shapes)
    initial_states = [accumulator.begin() for accumulator in accumulators]
    scalar_shape = tf.TensorShape([])
    _, _, accumulated = tf.while_loop(
        lambda start, *_: start < count,
        compute_part,
        [tf.zeros([], tf.int64), first_size, [tensors for tensors, _ in initial_states]],
        shape_invariants=[scalar_shape, scalar_shape, [shapes_of_tensors for _, shapes_of_tensors in initial_states]],
        parallel_iterations=1,  # one part in memory at a time
    )
    outputs = []
    for accumulator, tensors, value in zip(accumulators, accumulated, region.gives):
        output = accumulator.finish(tensors)
        if value.shape is not None:
            output.set_shape(value.shape)
        name = value.tensor.op.name.rsplit("/", 1)[-1].lstrip("_")  # no name may begin with "_"
        outputs.append(tf.identity(output, name))
    return outputs


def _copy_region(copy: Any, region: Region, part_copy: Any, inputs: Sequence[Any]) -> list[Any]:
    """The results of a region for a part: a copy of its ops.

    copy: the copy of the step, whose slice is the rank's rows, as a part of the batch.
    part_copy: a `Copy` whose slice is the part's rows, as a part of the rank's rows.
    """
    part_slice, rank_slice = part_copy.batch_slice, copy.batch_slice
    is_first = tf.equal(part_slice.first, 0)
    keeps = tf.logical_and(rank_slice.keeps, is_first)  # one part of one rank adds a replicated tensor to a sum
    body_copy = copies.copy(copy)
    body_copy.transform = None  # the programs inside of the region are not cut into regions again
    first = rank_slice.first + part_slice.first  # of the part's rows, in the batch
    body_copy.batch_slice = rank_slice._replace(first=first, count=part_slice.count, keeps=keeps)
    body = Body(body_copy, Program(region.nodes, [], region.gives, region.awaited))
    for node in body.program.nodes:
        node.level = 0  # a region has no collectives, so all its ops are on one level
    for (value, need), tensor in zip(region.takes, inputs):
        _pass_input(body, part_copy, value, need, tensor, is_first)
    results = body.build_levels([])
    with tf.control_dependencies(body.after):
        return [tf.identity(result) for result in results] if body.after else results


def _pass_input(body: Body, part_copy: Any, value: Value, need: Placement | None, tensor: Any, is_first: Any) -> None:
    """Pass an input of the region to the copy of its ops for a part.

    If it was made whole before the region (`need` is not None): the whole tensor. Else, by the placement of the value:
        sharded: the rows of the part
        partial sum: the sum for the first part, 0 for the others, because the results of the parts are added up
        sizes: the sizes of the part's rows
        others: the tensor itself
    """
    placement = value.placement
    if need is not None:
        body.tensors.brought[id(value), WHOLE] = tensor
        return
    if isinstance(placement, Sharded):
        tensor = part_copy.slice_rows(tensor, placement)
    elif isinstance(placement, Partial) and placement.reduction == "sum":
        tensor = tf.where(is_first, tensor, tf.zeros_like(tensor))
    elif isinstance(placement, Sizes):
        # `make_sizes_whole` turns sizes of `count` rows into sizes of `total` rows. With these numbers exchanged, it
        # turns sizes of the rank's rows into sizes of the part's rows. It reads no other field of the slice.
        inverse, part_slice = copies.copy(part_copy), part_copy.batch_slice
        inverse.batch_slice = Slice(
            part_slice.first, count=part_slice.total, total=part_slice.count, contributes=True, keeps=True
        )
        tensor = inverse.make_sizes_whole(tensor, placement)
    body.tensors.own[id(value)] = tensor
