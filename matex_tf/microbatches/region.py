"""A region in the copy: a loop over the parts of this rank's slice. One part's tensors are in memory at a time."""

from __future__ import annotations

import copy as copies
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from matex_tf.microbatches.cutting import Region
from matex_tf.microbatches.holders import make_holder
from matex_tf.rewrite.bodies import Body
from matex_tf.rewrite.nodes import Value
from matex_tf.rewrite.placement import PARTIAL, SIZES, WHOLE, Placement
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.sharing import Slice


class Sizes(Protocol):
    """The number of rows of each part of a region; int64 scalars in the graph."""

    def begin(self, count: Any, rows: Sequence[Any]) -> Any:
        """The first part. count: the rows of the rank. rows: the other sizes of tensors with rows."""

    def go_on(self, size: Any, count: Any, part: Any, sums: Sequence[Any], rows: Sequence[Any]) -> Any:
        """The part after one of `part` rows, with its results. size: the value that `begin` or
        `go_on` returned for it.
        """


def make_emit(region: Region, sizes: Sizes) -> Callable[..., list[Any]]:
    """Returns the function that computes the outputs of a region's node in a copy."""

    def emit(copy: Any, *tensors: Any) -> list[Any]:
        return _run(copy, region, sizes, tensors)

    return emit


def _run(copy: Any, region: Region, sizes: Sizes, tensors: Sequence[Any]) -> list[Any]:
    import tensorflow as tf

    count = copy.batch_slice.count
    shapes = [
        _drop_axis(tf.shape(tensor, tf.int64), value.placement.axis)
        for (value, need), tensor in zip(region.takes, tensors)
        if need is None and value.placement.is_sharded
    ]
    holders = [make_holder(value) for value in region.gives]
    begun = [holder.begin() for holder in holders]
    lengths = [len(one) for one, _ in begun]

    def turn(start: Any, size: Any, *held: Any) -> list[Any]:
        part = tf.minimum(size, count - start)
        rows = copies.copy(copy)
        rows.batch_slice = Slice(start, part, count, copy.batch_slice.contributes, copy.batch_slice.keeps)
        made = _make_part(copy, region, rows, tensors)
        after: list[Any] = []
        at = 0
        for holder, length, one in zip(holders, lengths, made):
            after += holder.add(rows, held[at : at + length], one)
            at += length
        following = sizes.go_on(size, count, part, *_sort_results(region, made, after, lengths))
        return [start + part, following, *after]

    zero = tf.zeros([], tf.int64)
    found = tf.while_loop(
        lambda start, *_: start < count,
        turn,
        [zero, sizes.begin(count, shapes), *(tensor for one, _ in begun for tensor in one)],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([]), *(shape for _, some in begun for shape in some)],
        parallel_iterations=1,
    )[2:]
    results = []
    for holder, length, value in zip(holders, lengths, region.gives):
        taken, found = found[:length], found[length:]
        whole = holder.finish(taken)
        if value.shape is not None:
            whole.set_shape(value.shape)
        results.append(tf.identity(whole, value.tensor.op.name.rsplit("/", 1)[-1].lstrip("_")))
    return results


def _drop_axis(shape: Any, axis: int) -> Any:
    import tensorflow as tf

    return tf.concat([shape[:axis], shape[axis + 1 :]], 0)


def _sort_results(
    region: Region, made: Sequence[Any], after: Sequence[Any], lengths: Sequence[int]
) -> tuple[list[Any], list[Any]]:
    """The sums after a part, and the rows that it computed."""
    sums, rows, at = [], [], 0
    for value, one, length in zip(region.gives, made, lengths):
        if value.placement.is_sharded:
            rows.append(one)
        else:
            sums.append(after[at])
        at += length
    return sums, rows


def _make_part(copy: Any, region: Region, rows: Any, tensors: Sequence[Any]) -> list[Any]:
    """The results of a region for a part. rows: a copy whose slice is that of the part."""
    import tensorflow as tf

    start, count, batch_slice = rows.batch_slice.first, rows.batch_slice.count, copy.batch_slice
    is_first = tf.equal(start, 0)
    here = copies.copy(copy)
    here.transform = None
    here.batch_slice = Slice(
        batch_slice.first + start,
        count,
        batch_slice.total,
        batch_slice.contributes,
        tf.logical_and(batch_slice.keeps, is_first),
    )
    gives = [value.placement for value in region.gives]
    body = Body(here, Program(region.nodes, [], region.gives, region.awaited), gives)
    for node in body.program.nodes:
        node.level = 0
    for (value, need), tensor in zip(region.takes, tensors):
        _give(body, rows, value, need, tensor, is_first)
    made = body.build_levels([])
    with tf.control_dependencies(body.after):
        return [tf.identity(one) for one in made] if body.after else made


def _give(body: Body, rows: Any, value: Value, need: Placement | None, tensor: Any, is_first: Any) -> None:
    """Pass a value from outside to the copy of a part."""
    import tensorflow as tf

    placement = value.placement
    if need is not None:
        if placement.kind == SIZES:
            body.brought[id(value), WHOLE] = tensor
        else:
            body.whole[id(value)] = tensor
        return
    if placement.is_sharded:
        tensor = rows.slice_rows(tensor, placement)
    elif placement.kind == PARTIAL and placement.reduction == "sum":
        tensor = tf.where(is_first, tensor, tf.zeros_like(tensor))
    elif placement.kind == SIZES:
        whole = copies.copy(rows)
        whole.batch_slice = Slice(rows.batch_slice.first, rows.batch_slice.total, rows.batch_slice.count, True, True)
        tensor = whole.make_sizes_whole(tensor, placement)
    body.tensors[id(value)] = tensor
