"""Rules for slices."""

from __future__ import annotations

from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.nodes import Decision, Node, NoRuleError
from matex_tf.rewrite.placement import PARTIAL, SIZES, WHOLE, Placement, Rows, Size, make_sizes, shard
from matex_tf.rewrite.rules.arrays import count_rows, take_blocks
from matex_tf.rewrite.rules.registry import register_rule
from matex_tf.rewrite.rules.sizes import find_need, find_rows, mark_taker, read_along


@register_rule("StridedSlice", moves=0)
def slice_with_strides(node: Node) -> Decision:
    if node.get_placement(0).kind == PARTIAL and node.get_placement(0).sizes:
        return _take_size(node)
    placement = node.require_rows()
    found, needs = follow_axis(node, placement, node.count_axes(0), node.read_length(0))
    is_column = placement.numbers is not None and node.count_axes(0) == 2 and _find_entry(node) == (None, 0)
    return node.decide([None, *needs], found._replace(numbers=placement.numbers) if is_column else found)


def _find_entry(node: Node) -> tuple[int | None, ...]:
    """The entry that a slice takes of each axis that it names: its index; None for all entries; -1 for others."""
    begin, stride = (node.read_constant(index).tolist() for index in (1, 3))
    masks = [node.read_attribute(f"{name}_mask") for name in ("begin", "end", "shrink_axis", "ellipsis", "new_axis")]
    if masks[3] or masks[4]:
        return ()
    found: list[int | None] = []
    for at, step in enumerate(stride):
        opened, shrinks = (masks[0] & masks[1]) >> at & 1, masks[2] >> at & 1
        found.append(begin[at] if shrinks else None if opened and step == 1 else -1)
    return tuple(found)


def _take_size(node: Node) -> Decision:
    """Take the number of rows from a shape whose other entries are maxima over the ranks."""
    sizes = node.get_placement(0).sizes
    numbers = [number for number in _find_entry(node) if number is not None]
    rows = sizes[numbers[0]].rows if len(numbers) == 1 and numbers[0] in range(len(sizes)) else None
    if rows is None or rows.unit is None:
        raise NoRuleError
    unit = rows.unit

    def emit(copy: Any, *_: Any) -> list[Any]:
        return [tf.cast(copy.batch_slice.count * unit, node.inputs[0].dtype)]

    return node.decide([None, WHOLE, WHOLE, WHOLE], make_sizes([Size(rows)]), emit=mark_taker(emit))


def follow_axis(
    node: Node, placement: Placement, count: int, length: int | None
) -> tuple[Placement, list[Placement | None]]:
    """The placement of a slice of a tensor, and the placements that its begin, end and stride need.

    The slice must take whole rows, or whole blocks of them.

    Args:
        placement: of the sliced tensor, which has `count` axes.
        length: the length of the axis with the rows, if it is constant.
    """
    ellipsis, new, shrink, begins, ends = (
        node.read_attribute(f"{name}_mask") for name in ("ellipsis", "new_axis", "shrink_axis", "begin", "end")
    )
    entries = node.read_shape(1)[0]
    if entries is None:
        raise NoRuleError
    named = sum(1 for index in range(entries) if not (new | ellipsis) >> index & 1)
    result_axis = axis = 0  # the next axes of the result and of the sliced tensor
    result: Placement | None = None
    needs: list[Placement | None] = [None if node.get_placement(index).kind == SIZES else WHOLE for index in (1, 2, 3)]
    for index in range(entries):
        bit = 1 << index
        if ellipsis & bit:
            skipped = count - named
            if axis <= placement.axis < axis + skipped:
                result = shard(result_axis + placement.axis - axis, placement.rows)
            result_axis, axis = result_axis + skipped, axis + skipped
        elif new & bit:
            result_axis += 1
        else:
            if axis == placement.axis:
                if shrink & bit or _read_entry(node, 3, index) != Size(None, 1):
                    raise NoRuleError
                bounds: list[Size | None] = [None, None]
                for which, mask in ((0, begins), (1, ends)):
                    if not mask & bit:
                        sizes = read_along(node, which + 1, index, placement, length)
                        bounds[which], needs[which] = sizes[index], find_need(node, which + 1, sizes)
                result = shard(result_axis, _cut(placement.rows, *bounds))
            elif _has_rows_in_bounds(node, index, begins & bit, ends & bit or shrink & bit):
                raise NoRuleError
            result_axis, axis = result_axis + (0 if shrink & bit else 1), axis + 1
    if result is None:  # the slice names fewer axes, and not the axis of the rows
        result = shard(result_axis + placement.axis - axis, placement.rows)
    return result, needs


@register_rule("StridedSliceGrad", linear=4)
def slice_backward(node: Node) -> Decision:
    """The gradient of a slice, padded with zeros: the axis of the rows is where the shape has the number of rows."""
    gradient = node.require_rows(4)
    sizes = node.read_sizes(0)
    found = find_rows(sizes)
    length = node.read_length(4)
    # For a constant shape: the axis that the slice keeps and in which the gradient has its rows.
    axes = [found[0]] if found else [at for at, size in enumerate(sizes) if size.value == length is not None]
    for axis in axes:
        before = shard(axis, found[1] if found else gradient.rows)
        after, needs = follow_axis(node, before, len(sizes), None if found else length)
        if after.has_layout(gradient):
            sizes = (*sizes[:axis], Size(before.rows), *sizes[axis + 1 :])
            return node.decide([find_need(node, 0, sizes), *needs, None], before)
    raise NoRuleError


def _read_entry(node: Node, index: int, at: int) -> Size:
    return node.read_sizes(index)[at]


def _has_rows_in_bounds(node: Node, at: int, whole_begin: Any, whole_end: Any) -> bool:
    """Whether another axis than the sharded one is cut at a number of rows, which differs on a slice."""
    named = ([] if whole_begin else [1]) + ([] if whole_end else [2])
    return any(
        node.get_placement(index).kind == SIZES and _read_entry(node, index, at).rows is not None for index in named
    )


def _cut(rows: Rows, begin: Size | None, end: Size | None) -> Rows:
    """The rows from `begin` to `end`; None: from the first, or to the last."""
    if end is not None and end.rows == rows:
        end = None
    if (begin is None or begin == Size(None, 0)) and end is None:
        return rows
    if rows.chosen is not None:
        raise NoRuleError
    first = 0 if begin is None else count_rows(begin)
    last = None if end is None else count_rows(end)
    if first is None or (end is not None and last is None):
        raise NoRuleError
    return take_blocks(rows, first, last)


@register_rule("Slice", moves=0)
def slice_by_sizes(node: Node) -> Decision:
    placement = node.require_rows()
    begins, counts = (read_along(node, index, placement.axis, placement, node.read_length(0)) for index in (1, 2))
    others = [size for part in (begins, counts) for at, size in enumerate(part) if at != placement.axis]
    if any(size.rows is not None for size in others):
        raise NoRuleError
    begin, size = begins[placement.axis], counts[placement.axis]
    rows = placement.rows
    if not (begin == Size(None, 0) and (size == Size(None, -1) or size.rows == rows)):
        first, length = count_rows(begin), None if size == Size(None, -1) else count_rows(size)
        if rows.chosen is not None or first is None or (length is None and size != Size(None, -1)):
            raise NoRuleError
        rows = take_blocks(rows, first, None if length is None else first + length)
    needs = [None, find_need(node, 1, begins), find_need(node, 2, counts)]
    return node.decide(needs, shard(placement.axis, rows))
