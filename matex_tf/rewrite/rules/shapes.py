"""Rules for tensors that are filled by sizes, and for ops that keep the order of entries."""

from __future__ import annotations

import math
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.nodes import Decision, Node, NoRuleError
from matex_tf.rewrite.placement import LIST, SIZES, WHOLE, ZERO, Placement, Rows, Size, shard
from matex_tf.rewrite.rules.entrywise import compute_entries
from matex_tf.rewrite.rules.registry import register_rule
from matex_tf.rewrite.rules.sizes import find_need, find_rows, mark_taker


@register_rule("Const")
def constant(node: Node) -> Decision:
    """The value is known from reading the graph."""
    value = node.outputs[0].constant
    return node.decide([], ZERO if value is not None and value.size and not value.any() else WHOLE)


@register_rule("ZerosLike OnesLike")
def fill_like(node: Node) -> Decision:
    placement = node.get_placement(0)
    if placement.is_sharded or placement.kind == LIST:
        return node.decide([None], shard(*placement.layout) if placement.is_sharded else placement)
    same = ZERO if node.type == "ZerosLike" else WHOLE
    return node.decide([None if placement.is_partial else WHOLE], same)


@register_rule("Fill")
def fill(node: Node) -> Decision:
    found = find_rows(node.read_sizes(0)) if node.get_placement(0).kind == SIZES else None
    if found is None:
        return node.decide([WHOLE, WHOLE], ZERO if node.get_placement(1).is_zero else WHOLE)
    return node.decide([None, WHOLE], shard(*found))


@register_rule("Reshape", moves=0)
def reshape(node: Node) -> Decision:
    placement = node.require_rows()
    wanted, before = node.read_sizes(1), node.inputs[0].shape
    if before is None:
        if placement.axis or not wanted or wanted[0].rows != placement.rows:
            raise NoRuleError
        return node.decide([None, None], shard(*placement.layout))
    whole = node.outputs[0].whole_shape
    if whole is not None and len(whole) == len(wanted):
        wanted = tuple(
            Size(None, known) if size == Size(None, -1) and known is not None else size
            for size, known in zip(wanted, whole)
        )
    axis, rows = _follow_rows(placement, before, wanted)
    numbers = placement.numbers if len(before) == 1 or all(size == 1 for size in before[1:]) else None
    if wanted[axis].value not in (None, -1):
        wanted = (*wanted[:axis], Size(rows), *wanted[axis + 1 :])
    need = find_need(node, 1, wanted)
    fixed = [None if size.rows is not None or size.value == -1 else size.value for size in wanted]
    decision = node.decide([None, need], shard(axis, rows)._replace(numbers=numbers))
    return decision._replace(shapes=[fixed])


def _follow_rows(placement: Placement, before: list[int | None], wanted: tuple[Size, ...]) -> tuple[int, Rows]:
    """The axis of the rows after a reshape from sizes `before` to `wanted`, and the rows along it.

    The axes outside of the rows must stay, and the rows absorb or give up entries of the axes inside.
    """
    outermost = placement.axis
    while outermost > 0 and before[outermost - 1] == 1:
        outermost -= 1  # axes of one entry directly outside of the rows may go
    axis = 0
    for size in before[:outermost]:
        if axis >= len(wanted) or size is None or wanted[axis] != Size(None, size):
            raise NoRuleError
        axis += 1
    while axis < len(wanted) and wanted[axis] == Size(None, 1) and len(wanted) > axis + 1:
        axis += 1  # and new ones may come
    if axis >= len(wanted):
        raise NoRuleError
    row_size, inner = wanted[axis], wanted[axis + 1 :]
    if any(other.rows is not None for other in inner):
        raise NoRuleError
    rows, inner_sizes = placement.rows, [other.value for other in inner]
    factor = _divide(before[placement.axis + 1 :], inner_sizes)
    if row_size.rows is None:
        if row_size.value is None or -1 in inner_sizes:
            raise NoRuleError
        return axis, _scale(rows, factor)
    if row_size.rows == rows and factor in (1, None):
        return axis, rows
    if rows.chosen is not None or row_size.rows.chosen is not None or None in rows.blocks:
        raise NoRuleError
    if factor is None and row_size.rows.unit is not None and rows.unit and row_size.rows.unit % rows.unit == 0:
        factor = row_size.rows.unit // rows.unit
    if factor is None and len(rows.blocks) == 1:
        return axis, row_size.rows
    return axis, _scale(rows, factor)


def _scale(rows: Rows, factor: Any) -> Rows:
    """The rows of an axis with `factor` entries, possibly fewer than one, in the place of each."""
    if factor is None or (rows.chosen is not None and factor != 1):
        raise NoRuleError
    blocks = [None if block is None else block * factor for block in rows.blocks]
    if any(block is None or int(block) != block for block in blocks) and factor != 1:
        raise NoRuleError
    return rows._replace(blocks=tuple(None if block is None else int(block) for block in blocks))


def _divide(inner: list[int | None], outer: list[int | None]) -> float | None:
    """The number of entries of sizes `inner` for each entry of sizes `outer`; None if it is unknown."""
    if None in inner or None in outer or -1 in outer:
        return None
    product = math.prod(size for size in outer if size is not None)
    return None if product == 0 else math.prod(size for size in inner if size is not None) / product


@register_rule("ExpandDims", moves=0)
def expand(node: Node) -> Decision:
    placement = node.require_rows()
    count = node.count_axes(0)
    axis = int(node.read_constant(1).reshape(()))
    axis += count + 1 if axis < 0 else 0
    return node.decide([None, WHOLE], placement._replace(axis=placement.axis + (axis <= placement.axis)))


@register_rule("Squeeze", moves=0)
def squeeze(node: Node) -> Decision:
    placement = node.require_rows()
    before = node.read_shape(0)
    axes = [int(axis) % len(before) for axis in node.read_attribute("squeeze_dims")]
    if not axes:
        if any(size is None for index, size in enumerate(before) if index != placement.axis):
            raise NoRuleError
        axes = [index for index, size in enumerate(before) if size == 1 and index != placement.axis]
    if placement.axis in axes:
        raise NoRuleError  # a batch may have one row, and a rank none or all of them
    after = placement._replace(axis=placement.axis - sum(axis < placement.axis for axis in axes))

    def emit(part: Any) -> list[Any]:
        return [tf.squeeze(part, axes) if axes else tf.identity(part)]

    return node.decide([None], after, emit=emit)


@register_rule("EnsureShape", linear=0)
def ensure(node: Node) -> Decision:
    placement, wanted = node.require_rows(), node.read_attribute("shape")
    if wanted.unknown_rank or wanted.dim[placement.axis].size < 0:
        return node.decide([None], placement)
    raise NoRuleError


@register_rule("Bitcast")
def bitcast(node: Node) -> Decision:
    if node.count_axes(0) != node.op.outputs[0].shape.rank:
        raise NoRuleError
    return compute_entries(node)


@register_rule("Transpose ConjugateTranspose", moves=0)
def transpose(node: Node) -> Decision:
    placement = node.require_rows()
    order = [int(axis) for axis in node.read_constant(1).reshape(-1)]
    return node.decide([None, WHOLE], shard(order.index(placement.axis), placement.rows))


@register_rule("BroadcastTo", moves=0)
def broadcast(node: Node) -> Decision:
    placement = node.get_placement(0)
    if node.get_placement(1).kind != SIZES:
        raise NoRuleError
    sizes = node.read_sizes(1)
    found = find_rows(sizes)
    if found is None:
        raise NoRuleError
    place, rows = found
    ahead = len(sizes) - node.count_axes(0)
    if placement.is_sharded:
        if (placement.axis + ahead, placement.rows) != found:
            raise NoRuleError
        return node.decide([None, None], shard(place, rows))
    given = node.read_shape(0)
    if place >= ahead and given[place - ahead] != 1:
        return node.decide([shard(place - ahead, rows), None], shard(place, rows))
    return node.decide([WHOLE, None], shard(place, rows))


@register_rule("Tile", moves=0)
def tile(node: Node) -> Decision:
    placement = node.get_placement(0)
    if placement.is_sharded:
        scale = node.read_sizes(1)
        if scale[placement.axis] != Size(None, 1) or node.get_placement(1).kind == SIZES:
            raise NoRuleError
        return node.decide([None, WHOLE], shard(*placement.layout))
    if node.get_placement(1).kind != SIZES:
        raise NoRuleError
    found = find_rows(node.read_sizes(1))
    if found is None or node.read_shape(0)[found[0]] != 1:
        raise NoRuleError  # repeats the batch as a whole
    return node.decide([WHOLE, None], shard(*found))


@register_rule("Range")
def count_up(node: Node) -> Decision:
    """`tf.range(rows)` numbers the rows of the script's batch: a rank begins with the index of its first row."""
    start, limit, delta = (node.inputs[index].sizes for index in range(3))
    rows = limit[0].rows if limit else None
    if rows is None or start != (Size(None, 0),) or delta != (Size(None, 1),):
        raise NoRuleError
    if rows.chosen is not None or len(rows.blocks) != 1:
        raise NoRuleError

    def emit(copy: Any, start: Any, limit: Any, delta: Any) -> list[Any]:
        return [tf.range(limit, dtype=limit.dtype) + tf.cast(copy.find_first(rows, limit), limit.dtype)]

    return node.decide([WHOLE, None, WHOLE], shard(0, rows)._replace(numbers=rows), emit=mark_taker(emit))
