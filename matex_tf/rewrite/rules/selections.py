"""Rules for selections by indices, masks or keys: gathers, tables, one-hot vectors, order statistics."""

from __future__ import annotations

from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.nodes import Decision, Node, NoRuleError
from matex_tf.rewrite.placement import WHOLE, Placement, Rows, shard
from matex_tf.rewrite.rules.registry import register_rule
from matex_tf.rewrite.rules.sizes import mark_taker


def count_from_here(copy: Any, part: Any, numbers: Any, rows: Rows) -> Any:
    """Turn indices into the script's tensor into indices into `part`, this rank's slice."""
    return numbers - tf.cast(copy.find_first(rows, tf.shape(part)[0]), numbers.dtype)


def place_first(number: Any, count: int) -> Any:
    """A vector of so many entries that begins with a number; the others are 0."""
    return tf.pad(tf.reshape(number, [1]), [[0, count - 1]])


@register_rule("GatherV2 Gather", moves=0)
def gather(node: Node) -> Decision:
    table, numbers = node.get_placement(0), node.get_placement(1)
    rest = [WHOLE] * (len(node.inputs) - 2)
    axis, outer = 0, 0
    if node.type == "GatherV2":
        outer = node.read_attribute("batch_dims")
        outer += node.count_axes(1) if outer < 0 else 0
        if node.has_rows:
            axis = node.read_axes(2, node.count_axes(0))[0]
    if numbers.numbers is not None and table.is_sharded and axis == outer == 0 and node.count_axes(1) == 1:
        return _take_numbered(node, table, numbers, rest)
    if not node.has_rows:
        raise NoRuleError
    if outer:
        placement = shard(*(table if table.is_sharded else numbers).layout)
        if placement.axis >= outer:
            raise NoRuleError
        return node.decide([node.bring_rows(0, placement), node.bring_rows(1, placement), *rest], placement)
    if numbers.is_sharded:
        return node.decide([WHOLE, None, *rest], shard(axis + numbers.axis, numbers.rows))
    if table.axis == axis:
        raise NoRuleError
    after = table.axis if table.axis < axis else table.axis - 1 + node.count_axes(1)
    return node.decide([None, WHOLE, *rest], shard(after, table.rows))


def _take_numbered(node: Node, table: Placement, numbers: Placement, rest: list[Any]) -> Decision:
    """Select rows that a mask chose, or all rows, by index: the indices of a rank's rows are among its own rows."""
    rows = numbers.numbers
    if table.axis or table.rows != rows:
        raise NoRuleError

    def emit(copy: Any, part: Any, chosen: Any, *_: Any) -> list[Any]:
        return [tf.gather(part, count_from_here(copy, part, chosen, rows))]

    return node.decide([None, None, *rest], shard(0, numbers.rows), emit=mark_taker(emit))


@register_rule("GatherNd", moves=0)
def gather_nd(node: Node) -> Decision:
    table, numbers = node.get_placement(0), node.get_placement(1)
    outer = node.read_attribute("batch_dims", 0)
    if outer or not node.has_rows:
        raise NoRuleError
    named = node.read_shape(1)[-1]
    if numbers.numbers is not None and table.is_sharded and table.axis == 0 and table.rows == numbers.numbers:
        if named is None or node.count_axes(1) != 2 or numbers.axis:
            raise NoRuleError
        rows = numbers.numbers

        def emit(copy: Any, part: Any, chosen: Any) -> list[Any]:
            first = tf.cast(copy.find_first(rows, tf.shape(part)[0]), chosen.dtype)
            return [tf.gather_nd(part, chosen - place_first(first, named))]

        return node.decide([None, None], shard(0, numbers.rows), emit=mark_taker(emit))
    if numbers.is_sharded and numbers.axis < node.count_axes(1) - 1:
        return node.decide([WHOLE, None], shard(numbers.axis, numbers.rows))
    raise NoRuleError


@register_rule("Where")
def where(node: Node) -> Decision:
    """The indices of true entries, for each axis: along the axis of the rows, indices into the script's tensor."""
    placement, count = node.require_rows(), node.count_axes(0)
    if placement.axis or placement.rows.chosen is not None or len(placement.rows.blocks) != 1:
        raise NoRuleError
    rows = placement.rows

    def emit(copy: Any, mask: Any) -> list[Any]:
        return [tf.where(mask) + place_first(copy.find_first(rows, tf.shape(mask)[0]), count)]

    chosen = Rows(rows.blocks, ("chosen", node.inputs[0].key))
    return node.decide([None], shard(0, chosen)._replace(numbers=rows), emit=mark_taker(emit))


@register_rule("OneHot")
def one_hot(node: Node) -> Decision:
    placement = node.require_rows()
    count = node.count_axes(0)
    axis = node.read_attribute("axis")
    axis += count + 1 if axis < 0 else 0
    return node.decide([None, WHOLE, WHOLE, WHOLE], shard(placement.axis + (axis <= placement.axis), placement.rows))
