"""Rules for reductions: over the rows, a rank's sum is a partial sum."""

from __future__ import annotations

from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.nodes import Decision, Expansion, Node, NoRuleError
from matex_tf.rewrite.placement import HALF, PARTIAL, SIZES, SUM, WHOLE, Placement, make_sizes, multiply_sizes, shard
from matex_tf.rewrite.rules.registry import keep_sum, register_rule


def find_reduced(node: Node) -> tuple[bool, int, list[int | None] | None]:
    """Whether the rows are reduced; if not, their axis after the reduction; and the shape of the result, if it is
    known.
    """
    placement, shape = node.get_placement(0), node.read_shape(0)
    named = node.read_named_axes(1, len(shape))
    keeps = node.read_attribute("keep_dims", False)
    after = None
    if None not in named:
        after = [1 if state else size for size, state in zip(shape, named) if keeps or not state]
    if not placement.is_sharded or named[placement.axis]:
        return True, 0, after
    if named[placement.axis] is None or (not keeps and None in named[: placement.axis]):
        raise NoRuleError
    return False, placement.axis if keeps else placement.axis - sum(map(bool, named[: placement.axis])), after


@register_rule("Sum")
def add_up(node: Node) -> Decision:
    placement = node.get_placement(0)
    if placement.kind == SIZES:
        raise NoRuleError
    if not placement.is_sharded:
        return keep_sum(node)._replace(shapes=[_find_shape(node)])
    reduced, axis, shape = find_reduced(node)
    return Decision([None, WHOLE], [SUM if reduced else shard(axis, placement.rows)], None, (), [shape])


def _find_shape(node: Node) -> list[int | None] | None:
    try:
        return find_reduced(node)[2]
    except NoRuleError:
        return None


@register_rule("Mean")
def average(node: Node) -> Decision | Expansion:
    """A mean over the rows: the sum divided by the number of all rows."""
    placement, dtype = node.get_placement(0), node.inputs[0].dtype
    if not placement.is_sharded:
        inexact = dtype.is_floating or dtype.is_complex
        return keep_sum(node) if not placement.is_partial or inexact else node.decide_whole()
    reduced, axis, _ = find_reduced(node)
    if not reduced:
        return node.decide([None, WHOLE], shard(axis, placement.rows))
    named = node.read_named_axes(1, node.count_axes(0))
    axes = tuple(axis for axis, is_named in enumerate(named) if is_named)
    return Expansion(_make_mean, (axes, node.read_attribute("keep_dims")))


def _make_mean(axes: tuple[int, ...], keeps: bool, rows: Any, _: Any) -> Any:
    sizes = tf.gather(tf.shape(rows, tf.int64), axes)
    wide = _widen(rows)
    total = tf.reduce_sum(wide, axes, keepdims=keeps)
    count = tf.cast(tf.reduce_prod(sizes), wide.dtype)
    return tf.cast(total // count if rows.dtype.is_integer else total / count, rows.dtype)


def _widen(rows: Any) -> Any:
    """In half precision a sum, or a number of rows, may overflow although the mean does not."""
    return tf.cast(rows, tf.float32) if rows.dtype.name in HALF else rows


@register_rule("Prod")
def multiply(node: Node) -> Decision:
    placement = node.get_placement(0)
    if placement.kind == SIZES and node.count_axes(0) == 1 and node.read_constant(1).size:
        product = multiply_sizes(placement.sizes)
        if product is not None:
            return node.decide([None, WHOLE], make_sizes([product]))
        return node.decide_whole()
    return take_extreme(node)


_BY = {"Max": "max", "Min": "min", "All": "min", "Any": "max"}


@register_rule("Max Min All Any")
def take_extreme(node: Node) -> Decision:
    """Over the rows: the extreme of the ranks' extremes. A rank without rows computes the extreme of another rank's
    row.
    """
    placement = node.require_rows()
    reduced, axis, shape = find_reduced(node)
    if not reduced:
        return Decision([None, WHOLE], [shard(axis, placement.rows)], None, (), [shape])
    if node.type not in _BY or node.inputs[0].dtype.name not in _COMPARED or placement.rows.chosen is not None:
        return node.decide_whole()
    return Decision([None, WHOLE], [Placement(PARTIAL, reduction=_BY[node.type])], None, (), [shape])


_COMPARED = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "bool")


@register_rule("EuclideanNorm")
def take_norm(node: Node) -> Decision | Expansion:
    placement = node.get_placement(0)
    if not placement.is_sharded or not find_reduced(node)[0]:
        return take_extreme(node)
    return Expansion(_make_norm, (tuple(node.read_axes(1, node.count_axes(0))), node.read_attribute("keep_dims")))


def _make_norm(axes: tuple[int, ...], keeps: bool, rows: Any, _: Any) -> Any:
    return tf.cast(tf.sqrt(tf.reduce_sum(tf.square(_widen(rows)), axes, keepdims=keeps)), rows.dtype)


@register_rule("ArgMax ArgMin")
def find_along_axis(node: Node) -> Decision:
    placement = node.require_rows()
    axes = node.read_axes(1, node.count_axes(0))
    if placement.axis in axes:
        raise NoRuleError
    return node.decide([None, WHOLE], shard(placement.axis - (axes[0] < placement.axis), placement.rows))


def _is_cheaper_gathered(node: Node) -> bool:
    """Whether gathering the rows and their indices (as in the gradient of an embedding) moves fewer bytes than the
    sums.

    A sum passes each link twice, in the reduction and in the broadcast; gathered rows pass it once. In a loop, the sums
    of all turns travel as one.
    """
    if node.repeats or node.outputs[0].shape is None or None in node.outputs[0].shape:
        return False
    gathered = sum(value.estimate_bytes(node.rows) for value in node.inputs if value.placement.is_sharded)
    return 0 < gathered < 2 * node.outputs[0].estimate_bytes(node.rows)


@register_rule("UnsortedSegmentSum", linear=0)
def add_by_number(node: Node) -> Decision:
    """Segment sums by an index for each row: each rank has a partial sum of each segment."""
    data, numbers = node.get_placement(0), node.get_placement(1)
    if numbers.is_sharded or (data.is_sharded and data.axis < node.count_axes(1)):
        if _is_cheaper_gathered(node):
            return node.decide_whole()
        layout = numbers.layout if numbers.is_sharded else data.layout
        if layout[1].chosen is not None and not data.has_layout(numbers):
            raise NoRuleError
        return node.decide([shard(*layout), shard(*layout), WHOLE], SUM)
    data = node.require_rows()
    return node.decide([None, WHOLE, WHOLE], shard(data.axis - node.count_axes(1) + 1, data.rows))


@register_rule("ScatterNd", linear=1)
def scatter(node: Node) -> Decision:
    """Entries at the same index add up, so each rank has a partial sum."""
    numbers, updates = node.get_placement(0), node.get_placement(1)
    placement = numbers if numbers.is_sharded else updates
    if not placement.is_sharded:
        raise NoRuleError
    if _is_cheaper_gathered(node):
        return node.decide_whole()
    if placement.axis >= node.count_axes(0) - 1 or (
        placement.rows.chosen is not None and not numbers.has_layout(updates)
    ):
        raise NoRuleError
    return node.decide([shard(*placement.layout), shard(*placement.layout), WHOLE], SUM)


@register_rule("Bincount DenseBincount")
def count_numbers(node: Node) -> Decision:
    numbers = node.require_rows()
    if numbers.rows.chosen is not None:
        raise NoRuleError
    weighs = node.read_shape(2)[:1] != [0]
    needs = [None, WHOLE, shard(*numbers.layout) if weighs else WHOLE]
    if node.type == "DenseBincount" and node.count_axes(0) == 2:
        if numbers.axis:
            raise NoRuleError
        return node.decide(needs, shard(0, numbers.rows))
    if node.read_attribute("binary_output", False):
        raise NoRuleError
    return node.decide(needs, SUM)
