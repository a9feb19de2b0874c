"""How a value of a step is made whole, or summed, from the tensors that ranks have: requests for collectives, and the
tensor made of their results.

Ranks gather along the first axis. So a tensor that is sharded along axis 2 is gathered with this axis in front, and a
tensor of two blocks (`placement.Rows`) block by block: all rows of block 0 come before the rows of block 1. A request
is `owned` if it is about pieces of variables, of which each rank has one: ranks without rows contribute, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from matex_tf.lazy import tf
from matex_tf.rewrite.nodes import Value
from matex_tf.rewrite.placement import ItemList, Partial, Piece, Rows, Sharded, Sizes
from matex_tf.rewrite.sharing import Request


class Prepared(NamedTuple):
    """An exchange that is ready to run. finish: makes the whole tensor from the results of the requests."""

    requests: list[Request]
    finish: Callable[[Sequence[Any]], Any]


def prepare(copy: Any, value: Value, tensor: Any, piece: Piece | None = None) -> Prepared:
    """Prepare the exchange of a value.

    copy: the copy that is built of the step's program (`emit`); it knows this rank's slice of the batch.
    tensor: the value in this copy.
    piece: of a partial sum of which a piece is needed: the placement of the piece. None: the whole value is needed.
    """
    placement = value.placement
    if isinstance(placement, Partial):
        return _prepare_partial(tensor, placement, () if piece is None else piece.cuts)
    if isinstance(placement, Piece):
        request = Request("gather", tensor, placement.cuts, owned=True)
        return Prepared([request], lambda results: tf.reshape(results[0], value.shape))
    if isinstance(placement, Sizes):
        return _prepare_sizes(copy, tensor, placement)
    if isinstance(placement, ItemList):
        return _prepare_list(copy, tensor, placement)
    if isinstance(placement, Sharded):
        return _prepare_rows(copy, tensor, placement.axis, placement.rows)
    raise TypeError(f"a tensor of the placement {placement} needs no collective")


def _prepare_partial(tensor: Any, placement: Partial, cuts: tuple[int, ...] = ()) -> Prepared:
    request = Request(placement.reduction, tensor, cuts, owned=placement.owned)
    return Prepared([request], lambda results: results[0])


def _prepare_rows(copy: Any, tensor: Any, axis: int, rows: Rows) -> Prepared:
    """Gathers the rows of all ranks, block by block, and joins the blocks."""

    def finish(results: Sequence[Any]) -> Any:
        whole_tensor = join_blocks(results, axis)
        if tensor.shape.rank is not None:
            whole_tensor.set_shape([None if index == axis else size for index, size in enumerate(tensor.shape)])
        return whole_tensor

    blocks = split_blocks(tensor, axis, rows, copy.batch_slice.count)
    return Prepared([Request("gather", block) for block in blocks], finish)


def split_blocks(tensor: Any, axis: int, rows: Rows, count: Any) -> list[Any]:
    """The blocks of a tensor that is sharded along `axis`, each with this axis in front.

    count: the number of rows of the batch that this rank has. `Rows.blocks` has each block's entries for one row.
    """
    rows_first = _swap_axes(tensor, axis)
    if len(rows.blocks) == 1:
        return [rows_first]
    return list(tf.split(rows_first, [block * count for block in rows.blocks], num=len(rows.blocks)))


def join_blocks(blocks: Sequence[Any], axis: int) -> Any:
    """The tensor that consists of these blocks; see `split_blocks`."""
    return _swap_axes(blocks[0] if len(blocks) == 1 else tf.concat(list(blocks), 0), axis)


def _swap_axes(tensor: Any, axis: int) -> Any:
    """The tensor with this axis and the first one exchanged."""
    if axis == 0:
        return tensor
    axes = tf.range(tf.rank(tensor))
    order = tf.where(tf.equal(axes, 0), axis, tf.where(tf.equal(axes, axis), 0, axes))
    return tf.transpose(tensor, order)


def _prepare_sizes(copy: Any, tensor: Any, placement: Sizes) -> Prepared:
    """Adds up numbers of rows that a mask selects: each rank knows only its own number. Other sizes are computed."""
    are_selected = [size.counts_chosen for size in placement.sizes]
    mask = tf.constant(are_selected[0] if tensor.shape.rank == 0 else are_selected)
    own_counts = tf.where(mask, tensor, tf.zeros_like(tensor))

    def finish(results: Sequence[Any]) -> Any:
        return copy.make_sizes_whole(tf.where(mask, results[0], tensor), placement)

    return Prepared([Request("sum", own_counts)], finish)


def _prepare_list(copy: Any, tensor: Any, placement: ItemList) -> Prepared:
    """Exchanges all items of a list as one tensor."""
    item, dtype = placement.item, placement.dtype

    def stack() -> Any:
        return tf.raw_ops.TensorListStack(input_handle=tensor, element_shape=-1, element_dtype=dtype)

    def unstack(items: Any) -> Any:
        return tf.raw_ops.TensorListFromTensor(tensor=items, element_shape=tf.shape(items)[1:])

    def make_sizes_whole() -> Any:
        return unstack(copy.make_sizes_whole(stack(), item))

    if isinstance(item, Sizes):  # without a collective; of a list without items the op `stack` does not know the shape
        has_items = tf.raw_ops.TensorListLength(input_handle=tensor) > 0
        return Prepared([], lambda _: tf.cond(has_items, make_sizes_whole, lambda: tf.identity(tensor)))
    stacked = stack()
    if isinstance(item, Sharded):
        prepared = _prepare_rows(copy, stacked, item.axis + 1, item.rows)  # axis 0 of the stack numbers the items
    else:
        prepared = _prepare_partial(stacked, cast(Partial, item))
    return Prepared(prepared.requests, lambda results: unstack(prepared.finish(results)))
