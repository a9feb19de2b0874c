"""Rules for ops that make or change shapes, such as fills, reshapes, transposes and tiles.

If the script makes zeros of the shape [n, 3] for a batch of n rows, a rank makes zeros for its rows. If the script
reshapes a batch of 64 rows of 3x5 to [64, 15], a rank with 32 rows reshapes its slice to [32, 15].
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.nodes import Decision, Node, require, require_known
from matex_tf.rewrite.placement import WHOLE, ZEROS, ItemList, Rows, Sharded, Size, Sizes, Zeros
from matex_tf.rewrite.rules.arrays import scale_blocks
from matex_tf.rewrite.rules.entrywise import compute_entries
from matex_tf.rewrite.rules.registry import register_rule
from matex_tf.rewrite.rules.sizes import find_need, find_rows, replace_size


@register_rule("Const")
def constant(node: Node) -> Decision:
    """`propagate` has set the value of the output."""
    value = node.outputs[0].constant
    return node.decide([], ZEROS if value is not None and value.size and not value.any() else WHOLE)


@register_rule("ZerosLike OnesLike")
def fill_like(node: Node) -> Decision:
    placement = node.get_placement(0)
    if isinstance(placement, Sharded):
        return node.decide([None], placement.plain)  # the same rows, without facts about the old values
    if isinstance(placement, ItemList):
        require(placement.item is None or not isinstance(placement.item, Sizes))  # zeros in place of sizes are no sizes
        return node.decide([None], placement)
    # The op reads only the shape, and the shape of a partial sum is the script's.
    return node.decide([None if placement.is_row_sum else WHOLE], ZEROS if node.type == "ZerosLike" else WHOLE)


@register_rule("Fill")
def fill(node: Node) -> Decision:
    """The result has the rows that input 0, its shape, counts. Input 1 is the number that fills it."""
    placement = find_rows(node.read_sizes(0)) if isinstance(node.get_placement(0), Sizes) else None
    if placement is None:
        return node.decide([], ZEROS if isinstance(node.get_placement(1), Zeros) else WHOLE)
    return node.decide([None], placement)


@register_rule("Reshape", moves=0)
def reshape(node: Node) -> Decision:
    """Finds the axis that has the rows in the result. A rank's own length replaces a fixed length of this axis."""
    placement = node.require_rows()
    new_sizes, old_shape = node.read_sizes(1), node.inputs[0].shape
    if old_shape is None:  # the new shape must begin with the number of rows
        require(placement.axis == 0 and bool(new_sizes) and new_sizes[0].rows == placement.rows)
        return node.decide([None, None], placement.plain)
    # Where the script's shape has -1, the shape of its result may show the size.
    whole_shape = node.outputs[0].whole_shape
    if whole_shape is not None and len(whole_shape) == len(new_sizes):
        new_sizes = tuple(
            Size(None, known_size) if size == Size(None, -1) and known_size is not None else size
            for size, known_size in zip(new_sizes, whole_shape)
        )
    axis, rows = _find_new_axis(placement, old_shape, new_sizes)
    # Values that are indices of rows stay so if each row has one of them.
    has_one_value = all(size == 1 for size in old_shape[1:])
    index_rows = placement.index_rows if has_one_value else None
    if new_sizes[axis].value not in (None, -1):
        new_sizes = replace_size(new_sizes, axis, rows)
    fixed_shape = [None if size.rows is not None or size.value == -1 else size.value for size in new_sizes]
    new_placement = Sharded(axis, rows, index_rows)
    return node.decide([None, find_need(node, 1, new_sizes)], new_placement, shapes=[fixed_shape])


def _find_new_axis(placement: Sharded, old_shape: list[int | None], new_sizes: tuple[Size, ...]) -> tuple[int, Rows]:
    """The axis of the rows after a reshape, and the rows along this axis.

    The axis of the rows may join axes after it, or be split: if a batch of n rows, [n, 3, 5], becomes [3n, 5], the axis
    has 3 entries for each row. The entries of the axes after it, 15 before and 5 then, give this factor 3.
    """
    # Skip axes of size 1 directly before the rows, in the old and the new shape. The axes before these must be equal.
    axis = placement.axis
    while axis > 0 and old_shape[axis - 1] == 1:
        axis -= 1
    require(len(new_sizes) > axis and None not in old_shape[:axis])
    require([Size(None, size) for size in old_shape[:axis]] == list(new_sizes[:axis]))
    while new_sizes[axis] == Size(None, 1) and len(new_sizes) > axis + 1:
        axis += 1
    rows, new_length, inner_sizes = placement.rows, new_sizes[axis], new_sizes[axis + 1 :]
    require(all(size.rows is None for size in inner_sizes))
    factor = _divide_entries(old_shape[placement.axis + 1 :], [size.value for size in inner_sizes])
    # The new length is a number, or -1.
    if new_length.rows is None:
        require(new_length.value is not None and Size(None, -1) not in inner_sizes)
        return axis, scale_blocks(rows, require_known(factor))
    # The new length counts rows, such as n or n * 3.
    if new_length.rows == rows and factor in (1, None):
        return axis, rows
    require(rows.chosen is None and new_length.rows.chosen is None)
    # A rank's entries of a single block are consecutive, before and after. So the new length suffices.
    if len(rows.blocks) == 1:
        return axis, Rows((new_length.rows.unit,))
    # If sizes of the axes after it are unknown, the factor is the quotient of the units: the numbers of entries for
    # each row of the batch, after and before.
    if factor is None:
        require(bool(rows.unit))
        factor = Fraction(require_known(new_length.rows.unit), require_known(rows.unit))
    return axis, scale_blocks(rows, factor)


def _divide_entries(old_sizes: list[int | None], new_sizes: list[int | None]) -> Fraction | None:
    """The number of entries of `old_sizes`, divided by the entries of `new_sizes`; None if it is unknown."""
    if None in old_sizes or None in new_sizes or -1 in new_sizes or 0 in new_sizes:
        return None
    return Fraction(math.prod(size or 0 for size in old_sizes), math.prod(size or 0 for size in new_sizes))


@register_rule("ExpandDims", moves=0)
def expand(node: Node) -> Decision:
    placement = node.require_rows()
    axis_count, new_axis = node.count_axes(0), int(node.read_constant(1).reshape(()))
    if new_axis < 0:
        new_axis += axis_count + 1
    return node.decide([None], dataclasses.replace(placement, axis=placement.axis + (new_axis <= placement.axis)))


@register_rule("Squeeze", moves=0)
def squeeze(node: Node) -> Decision:
    placement = node.require_rows()
    old_shape = node.read_shape(0)
    axes = [int(axis) % len(old_shape) for axis in node.read_attribute("squeeze_dims")]
    if not axes:
        require(all(size is not None for index, size in enumerate(old_shape) if index != placement.axis))
        require(placement.rows.chosen is None)  # a mask may select a single row, whose axis the op drops
        axes = [index for index, size in enumerate(old_shape) if size == 1 and index != placement.axis]
    require(placement.axis not in axes)  # a batch may have one row, and a rank none or all of them
    new_placement = dataclasses.replace(placement, axis=placement.axis - sum(axis < placement.axis for axis in axes))

    def emit(_: Any, own_rows: Any) -> list[Any]:
        return [tf.squeeze(own_rows, axes) if axes else tf.identity(own_rows)]

    return node.decide([None], new_placement, emit=emit)


@register_rule("EnsureShape", linear=0)
def ensure(node: Node) -> Decision:
    placement, required_shape = node.require_rows(), node.read_attribute("shape")
    # A slice lacks the script's fixed length.
    require(required_shape.unknown_rank or required_shape.dim[placement.axis].size < 0)
    return node.decide([None], placement)


@register_rule("Bitcast")
def bitcast(node: Node) -> Decision:
    require(node.count_axes(0) == node.op.outputs[0].shape.rank)  # dtypes of other sizes add or remove the last axis
    return compute_entries(node)


@register_rule("Transpose ConjugateTranspose", moves=0)
def transpose(node: Node) -> Decision:
    placement = node.require_rows()
    order = [int(axis) for axis in node.read_constant(1).reshape(-1)]
    return node.decide([None], Sharded(order.index(placement.axis), placement.rows))


@register_rule("BroadcastTo", moves=0)
def broadcast(node: Node) -> Decision:
    result = _place_result(node)
    # The last axes of input and result correspond, so the axis of the rows is counted from the end.
    axis_from_end = len(node.read_sizes(1)) - result.axis
    axis = node.count_axes(0) - axis_from_end
    need = WHOLE if axis < 0 else node.bring_rows(0, Sharded(axis, result.rows))
    return node.decide([need, None], result)


def _place_result(node: Node) -> Sharded:
    """The placement of the result. Raises NoRuleError if the second input has no number that counts rows."""
    return require_known(find_rows(node.require_kind(1, Sizes).sizes))


@register_rule("Tile", moves=0)
def tile(node: Node) -> Decision:
    placement = node.get_placement(0)
    if isinstance(placement, Sharded):
        require(node.read_sizes(1)[placement.axis] == Size(None, 1) and not isinstance(node.get_placement(1), Sizes))
        return node.decide([None], placement.plain)
    result = _place_result(node)
    require(node.read_shape(0)[result.axis] == 1)  # several entries would be repeated as a whole, not one by one
    return node.decide([WHOLE, None], result)


@register_rule("Range")
def count_up(node: Node) -> Decision:
    """`tf.range(rows)` numbers the rows of the script's batch: a rank begins with the index of its first row."""
    start_sizes, limit_sizes, delta_sizes = (node.inputs[index].sizes for index in range(3))
    rows = require_known(limit_sizes[0].rows if limit_sizes else None)
    require(start_sizes == (Size(None, 0),) and delta_sizes == (Size(None, 1),) and rows.is_contiguous)

    def emit(copy: Any, start: Any, limit: Any, delta: Any) -> list[Any]:
        return [tf.range(limit, dtype=limit.dtype) + tf.cast(copy.find_first(limit), limit.dtype)]

    return node.decide([WHOLE, None], Sharded(0, rows, rows), emit=emit)
