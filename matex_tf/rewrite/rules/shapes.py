"""Rules for tensors that are filled by sizes, and for ops that keep the order of entries."""

from __future__ import annotations

import math
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.nodes import Decision, Node, NoRuleError
from matex_tf.rewrite.placement import (
    LIST,
    SIZES,
    WHOLE,
    ZERO,
    Placement,
    Rows,
    Size,
    shard,
)
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
    one = node.get_placement(0)
    if one.is_sharded or one.kind == LIST:
        return node.decide([None], shard(*one.layout) if one.is_sharded else one)
    same = ZERO if node.type == "ZerosLike" else WHOLE
    return node.decide([None if one.is_partial else WHOLE], same)


@register_rule("Fill")
def fill(node: Node) -> Decision:
    found = find_rows(node.read_sizes(0)) if node.get_placement(0).kind == SIZES else None
    if found is None:
        return node.decide([WHOLE, WHOLE], ZERO if node.get_placement(1).zero else WHOLE)
    return node.decide([None, WHOLE], shard(*found))


@register_rule("Reshape", moves=0)
def reshape(node: Node) -> Decision:
    one = node.require_rows()
    wanted, before = node.read_sizes(1), node.inputs[0].shape
    if before is None:
        if one.axis or not wanted or wanted[0].rows != one.rows:
            raise NoRuleError
        return node.decide([None, None], shard(*one.layout))
    whole = node.outputs[0].whole_shape
    if whole is not None and len(whole) == len(wanted):
        wanted = tuple(Size(None, size) if one == Size(None, -1) and size is not None else one
                       for one, size in zip(wanted, whole))  # fmt: skip
    place, rows = _follow_rows(one, before, wanted)
    numbers = one.numbers if len(before) == 1 or all(size == 1 for size in before[1:]) else None
    if wanted[place].value not in (None, -1):
        wanted = (*wanted[:place], Size(rows), *wanted[place + 1 :])
    needs = find_need(node, 1, wanted)
    fixed = [None if size.rows is not None or size.value == -1 else size.value for size in wanted]
    found = node.decide([None, needs], shard(place, rows)._replace(numbers=numbers))
    return found._replace(shapes=[fixed])


def _follow_rows(one: Placement, before: list[int | None], wanted: tuple[Size, ...]) -> tuple[int, Rows]:
    """The axis of the rows after a reshape to `wanted`, and its number of entries for each row."""
    at = one.axis
    while at > 0 and before[at - 1] == 1:
        at -= 1  # a single entry: the rows are the outermost axis that changes
    place = 0
    for size in before[:at]:
        if place >= len(wanted) or size is None or wanted[place] != Size(None, size):
            raise NoRuleError
        place += 1
    while place < len(wanted) and wanted[place] == Size(None, 1) and len(wanted) > place + 1:
        place += 1
    if place >= len(wanted):
        raise NoRuleError
    rows, rest = wanted[place], wanted[place + 1 :]
    if any(size.rows is not None for size in rest):
        raise NoRuleError
    inner, outer = before[one.axis + 1 :], [size.value for size in rest]
    factor = _divide(inner, outer)
    if rows.rows is not None:
        if rows.rows == one.rows and factor in (1, None):
            return place, one.rows
        if one.rows.chosen is not None or rows.rows.chosen is not None or None in one.rows.blocks:
            raise NoRuleError
        if factor is None and rows.rows.unit is not None and one.rows.unit and rows.rows.unit % one.rows.unit == 0:
            factor = rows.rows.unit // one.rows.unit
        if factor is None and len(one.rows.blocks) == 1:
            return place, rows.rows
        return place, _scale(one.rows, factor)
    if rows.value is None or -1 in outer:
        raise NoRuleError
    return place, _scale(one.rows, factor)


def _scale(rows: Rows, factor: Any) -> Rows:
    """The rows of an axis with `factor` entries, possibly fewer than one, in the place of each."""
    if factor is None or (rows.chosen is not None and factor != 1):
        raise NoRuleError
    made = [None if block is None else block * factor for block in rows.blocks]
    if any(block is None or int(block) != block for block in made) and factor != 1:
        raise NoRuleError
    return rows._replace(blocks=tuple(None if block is None else int(block) for block in made))


def _divide(inner: list[int | None], outer: list[int | None]) -> float | None:
    """The number of entries of sizes `inner` for each entry of sizes `outer`; None if it is unknown."""
    if None in inner or None in outer or -1 in outer:
        return None
    product = math.prod(size for size in outer if size is not None)
    return None if product == 0 else math.prod(size for size in inner if size is not None) / product


@register_rule("ExpandDims", moves=0)
def expand(node: Node) -> Decision:
    one = node.require_rows()
    count = node.count_axes(0)
    axis = int(node.read_constant(1).reshape(()))
    axis += count + 1 if axis < 0 else 0
    return node.decide([None, WHOLE], one._replace(axis=one.axis + (axis <= one.axis)))


@register_rule("Squeeze", moves=0)
def squeeze(node: Node) -> Decision:
    one = node.require_rows()
    before = node.read_shape(0)
    axes = [int(axis) % len(before) for axis in node.read_attribute("squeeze_dims")]
    if not axes:
        if any(size is None for index, size in enumerate(before) if index != one.axis):
            raise NoRuleError
        axes = [index for index, size in enumerate(before) if size == 1 and index != one.axis]
    if one.axis in axes:
        raise NoRuleError  # a batch may have one row, and a rank none or all of them
    after = one._replace(axis=one.axis - sum(axis < one.axis for axis in axes))

    def emit(part: Any) -> list[Any]:
        return [tf.squeeze(part, axes) if axes else tf.identity(part)]

    return node.decide([None], after, emit=emit)


@register_rule("EnsureShape", linear=0)
def ensure(node: Node) -> Decision:
    one, wanted = node.require_rows(), node.read_attribute("shape")
    if wanted.unknown_rank or wanted.dim[one.axis].size < 0:
        return node.decide([None], one)
    raise NoRuleError


@register_rule("Bitcast")
def bitcast(node: Node) -> Decision:
    if node.count_axes(0) != node.op.outputs[0].shape.rank:
        raise NoRuleError
    return compute_entries(node)


@register_rule("Transpose ConjugateTranspose", moves=0)
def transpose(node: Node) -> Decision:
    one = node.require_rows()
    order = [int(axis) for axis in node.read_constant(1).reshape(-1)]
    return node.decide([None, WHOLE], shard(order.index(one.axis), one.rows))


@register_rule("BroadcastTo", moves=0)
def broadcast(node: Node) -> Decision:
    one = node.get_placement(0)
    if node.get_placement(1).kind != SIZES:
        raise NoRuleError
    sizes = node.read_sizes(1)
    found = find_rows(sizes)
    if found is None:
        raise NoRuleError
    place, rows = found
    ahead = len(sizes) - node.count_axes(0)
    if one.is_sharded:
        if (one.axis + ahead, one.rows) != found:
            raise NoRuleError
        return node.decide([None, None], shard(place, rows))
    given = node.read_shape(0)
    if place >= ahead and given[place - ahead] != 1:
        return node.decide([shard(place - ahead, rows), None], shard(place, rows))
    return node.decide([WHOLE, None], shard(place, rows))


@register_rule("Tile", moves=0)
def tile(node: Node) -> Decision:
    one = node.get_placement(0)
    if one.is_sharded:
        scale = node.read_sizes(1)
        if scale[one.axis] != Size(None, 1) or node.get_placement(1).kind == SIZES:
            raise NoRuleError
        return node.decide([None, WHOLE], shard(*one.layout))
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
