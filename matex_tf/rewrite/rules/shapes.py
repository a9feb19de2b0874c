"""Rules for tensors whose shape is computed from the number of rows, and for ops that keep the order of entries.

If the script makes zeros of the shape [n, 3] for a batch of n rows, a rank makes zeros for its rows. If it reshapes a
batch of 64 rows of 3x5 to [64, 15], a rank with 32 rows reshapes its slice to [32, 15].
"""

from __future__ import annotations

import math
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.nodes import Decision, Node, require, require_known
from matex_tf.rewrite.placement import LIST, SIZES, WHOLE, ZERO, Placement, Rows, Size, shard
from matex_tf.rewrite.rules.entrywise import compute_entries
from matex_tf.rewrite.rules.registry import register_rule
from matex_tf.rewrite.rules.sizes import find_need, find_rows, replace_size


@register_rule("Const")
def constant(node: Node) -> Decision:
    """The value is known from reading the graph."""
    value = node.outputs[0].constant
    return node.decide([], ZERO if value is not None and value.size and not value.any() else WHOLE)


@register_rule("ZerosLike OnesLike")
def fill_like(node: Node) -> Decision:
    placement = node.get_placement(0)
    if placement.is_sharded:
        return node.decide([None], shard(*placement.layout))
    if placement.kind == LIST:
        return node.decide([None], placement)
    return node.decide([None if placement.is_partial else WHOLE], ZERO if node.type == "ZerosLike" else WHOLE)


@register_rule("Fill")
def fill(node: Node) -> Decision:
    found = find_rows(node.read_sizes(0)) if node.get_placement(0).kind == SIZES else None
    if found is None:
        return node.decide([], ZERO if node.get_placement(1).is_zero else WHOLE)
    return node.decide([None], found)


@register_rule("Reshape", moves=0)
def reshape(node: Node) -> Decision:
    """Finds the axis that has the rows afterwards. There the rank's own length replaces a fixed one."""
    placement = node.require_rows()
    wanted, before = node.read_sizes(1), node.inputs[0].shape
    if before is None:  # the new shape must begin with the number of rows
        require(placement.axis == 0 and bool(wanted) and wanted[0].rows == placement.rows)
        return node.decide([None, None], shard(*placement.layout))
    whole = node.outputs[0].whole_shape
    if whole is not None and len(whole) == len(wanted):
        wanted = tuple(
            Size(None, known) if size == Size(None, -1) and known is not None else size
            for size, known in zip(wanted, whole)
        )
    axis, rows = _follow_rows(placement, before, wanted)
    index_rows = placement.index_rows if all(size == 1 for size in before[1:]) else None
    if wanted[axis].value not in (None, -1):
        wanted = replace_size(wanted, axis, rows)
    fixed = [None if size.rows is not None or size.value == -1 else size.value for size in wanted]
    after = shard(axis, rows)._replace(index_rows=index_rows)
    return node.decide([None, find_need(node, 1, wanted)], after, shapes=[fixed])


def _follow_rows(placement: Placement, before: list[int | None], wanted: tuple[Size, ...]) -> tuple[int, Rows]:
    """The axis of the rows after a reshape from sizes `before` to `wanted`, and the rows along it.

    The axis of the rows takes entries from the axes after it, or gives them some: if rows of 3x5 entries, [n, 3, 5],
    become [3n, 5], the axis has 3 entries for each row.
    """
    # Axes of one entry directly outside of the rows may go, and new ones may come. The axes before these must stay.
    axis = placement.axis
    while axis > 0 and before[axis - 1] == 1:
        axis -= 1
    require(len(wanted) > axis and None not in before[:axis])
    require([Size(None, size) for size in before[:axis]] == list(wanted[:axis]))
    while wanted[axis] == Size(None, 1) and len(wanted) > axis + 1:
        axis += 1
    rows, row_size, inner = placement.rows, wanted[axis], wanted[axis + 1 :]
    require(all(size.rows is None for size in inner))
    factor = _divide(before[placement.axis + 1 :], [size.value for size in inner])
    # The wanted length is a number, or -1: the axes after it give the factor.
    if row_size.rows is None:
        require(row_size.value is not None and Size(None, -1) not in inner)
        return axis, _scale(rows, factor)
    if row_size.rows == rows and factor in (1, None):
        return axis, rows
    # The script computed the length from the number of rows, such as n * 3. If the sizes of the axes after it are
    # unknown, the factor is the quotient of the units: the entries for each row of the batch, here and there.
    unit, new_unit = rows.unit, row_size.rows.unit
    require(unit is not None and row_size.rows.chosen is None)
    if factor is None and new_unit is not None and unit and new_unit % unit == 0:
        factor = new_unit // unit
    if factor is None and len(rows.blocks) == 1:
        return axis, row_size.rows
    return axis, _scale(rows, factor)


def _scale(rows: Rows, factor: float | None) -> Rows:
    """The rows of an axis with `factor` entries, possibly fewer than one, in the place of each."""
    if factor == 1:
        return rows
    blocks = [block * require_known(factor) for block in rows.blocks if block is not None]
    require(rows.unit is not None and all(block == int(block) for block in blocks))
    return Rows(tuple(map(int, blocks)))


def _divide(inner: list[int | None], outer: list[int | None]) -> float | None:
    """The number of entries of sizes `inner` for each entry of sizes `outer`; None if it is unknown."""
    if None in inner or None in outer or -1 in outer or 0 in outer:
        return None
    return math.prod(size or 0 for size in inner) / math.prod(size or 0 for size in outer)


@register_rule("ExpandDims", moves=0)
def expand(node: Node) -> Decision:
    placement = node.require_rows()
    count = node.count_axes(0)
    axis = int(node.read_constant(1).reshape(()))
    axis += count + 1 if axis < 0 else 0
    return node.decide([None], placement._replace(axis=placement.axis + (axis <= placement.axis)))


@register_rule("Squeeze", moves=0)
def squeeze(node: Node) -> Decision:
    placement = node.require_rows()
    before = node.read_shape(0)
    axes = [int(axis) % len(before) for axis in node.read_attribute("squeeze_dims")]
    if not axes:
        require(all(size is not None for index, size in enumerate(before) if index != placement.axis))
        axes = [index for index, size in enumerate(before) if size == 1 and index != placement.axis]
    require(placement.axis not in axes)  # a batch may have one row, and a rank none or all of them
    after = placement._replace(axis=placement.axis - sum(axis < placement.axis for axis in axes))

    def emit(_: Any, part: Any) -> list[Any]:
        return [tf.squeeze(part, axes) if axes else tf.identity(part)]

    return node.decide([None], after, emit=emit)


@register_rule("EnsureShape", linear=0)
def ensure(node: Node) -> Decision:
    placement, wanted = node.require_rows(), node.read_attribute("shape")
    require(wanted.unknown_rank or wanted.dim[placement.axis].size < 0)
    return node.decide([None], placement)


@register_rule("Bitcast")
def bitcast(node: Node) -> Decision:
    require(node.count_axes(0) == node.op.outputs[0].shape.rank)
    return compute_entries(node)


@register_rule("Transpose ConjugateTranspose", moves=0)
def transpose(node: Node) -> Decision:
    placement = node.require_rows()
    order = [int(axis) for axis in node.read_constant(1).reshape(-1)]
    return node.decide([None], shard(order.index(placement.axis), placement.rows))


@register_rule("BroadcastTo", moves=0)
def broadcast(node: Node) -> Decision:
    found = _find_new_rows(node)
    axis = found.axis - len(node.read_sizes(1)) + node.count_axes(0)
    return node.decide([WHOLE if axis < 0 else node.bring_rows(0, shard(axis, found.rows)), None], found)


def _find_new_rows(node: Node) -> Placement:
    """The placement of the result, if the second input is a shape that counts rows."""
    require(node.get_placement(1).kind == SIZES)
    return require_known(find_rows(node.read_sizes(1)))


@register_rule("Tile", moves=0)
def tile(node: Node) -> Decision:
    placement = node.get_placement(0)
    if placement.is_sharded:
        require(node.read_sizes(1)[placement.axis] == Size(None, 1) and node.get_placement(1).kind != SIZES)
        return node.decide([None], shard(*placement.layout))
    found = _find_new_rows(node)
    require(node.read_shape(0)[found.axis] == 1)  # otherwise the op repeats the batch as a whole
    return node.decide([WHOLE, None], found)


@register_rule("Range")
def count_up(node: Node) -> Decision:
    """`tf.range(rows)` numbers the rows of the script's batch: a rank begins with the index of its first row."""
    start, limit, delta = (node.inputs[index].sizes for index in range(3))
    rows = require_known(limit[0].rows if limit else None)
    require(start == (Size(None, 0),) and delta == (Size(None, 1),) and rows.is_contiguous)

    def emit(copy: Any, start: Any, limit: Any, delta: Any) -> list[Any]:
        return [tf.range(limit, dtype=limit.dtype) + tf.cast(copy.find_first(limit), limit.dtype)]

    return node.decide([WHOLE, None], shard(0, rows)._replace(index_rows=rows), emit=emit)
