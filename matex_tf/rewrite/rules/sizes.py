"""Rules for sizes of tensors, as `tf.shape` gives them, and for their use in gradients.

With a batch of 5 rows, `tf.shape(batch)[0]` is 5 in the script, and 3 on a rank with 3 rows. So a `placement.Size`
notes for each number whether it counts rows, and how many entries there are for each row.
"""

from __future__ import annotations

from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.nodes import Decision, Node, require, require_known
from matex_tf.rewrite.placement import WHOLE, ItemList, NamedAxes, Placement, Rows, Sharded, Size, Sizes, multiply_sizes
from matex_tf.rewrite.rules.registry import keep_sizes, move_sizes, register_rule


def _describe_shape(node: Node, index: int) -> tuple[Size, ...]:
    """The shape of an input: for the sharded axis a size that counts rows, for each other axis its fixed size."""
    placement, sizes = node.get_placement(index), [Size(None, size) for size in node.read_shape(index)]
    require(not isinstance(placement, ItemList))
    if isinstance(placement, Sharded):
        sizes[placement.axis] = Size(placement.rows)
    return tuple(sizes)


@register_rule("Shape ShapeN")
def shape(node: Node) -> Decision:
    shapes = [Sizes(_describe_shape(node, index)) for index in range(len(node.inputs))]
    return node.decide([None] * len(node.inputs), *shapes)


@register_rule("Size")
def size(node: Node) -> Decision:
    return node.decide([None], Sizes((require_known(multiply_sizes(_describe_shape(node, 0))),)))


@register_rule("Rank")
def rank(node: Node) -> Decision:
    node.count_axes(0)  # raises NoRuleError if the number of axes is unknown
    return node.decide([None], WHOLE)


def find_rows(sizes: tuple[Size, ...]) -> Sharded | None:
    """The placement of a tensor with this shape: sharded along the axis that counts rows; None if no axis does."""
    placements = [Sharded(axis, size.rows) for axis, size in enumerate(sizes) if size.rows is not None]
    require(len(placements) <= 1)  # a tensor is sharded along one axis
    return placements[0] if placements else None


def replace_size(sizes: tuple[Size, ...], index: int, rows: Rows) -> tuple[Size, ...]:
    """`sizes` with another number at `index`: the number of entries of an axis with these rows."""
    return (*sizes[:index], Size(rows), *sizes[index + 1 :])


def read_along(node: Node, index: int, entry: int, placement: Sharded, length: int | None) -> tuple[Size, ...]:
    """The sizes in input `index`, such as the ends of a slice. The size at `entry` is for the axis with the rows.

    The script may have a constant there that counts rows. For example, with 64 rows, the end 128 takes two concatenated
    batches. A constant that is a multiple of the number of rows is returned as a number of rows.

    placement: the placement of the tensor whose axis has the rows.
    length: the length of the axis in the script; None if it is not fixed.
    """
    sizes, unit = node.read_sizes(index), placement.rows.unit
    number = sizes[entry].value
    if sizes[entry].rows is not None or not (number and length and unit):
        return sizes  # the number is known to count rows, or it cannot be compared to the number of rows
    if number * unit % length:  # length / unit is the number of rows
        return sizes
    return replace_size(sizes, entry, Rows((number * unit // length,)))


def find_need(node: Node, index: int, sizes: tuple[Size, ...]) -> Placement | None:
    """The placement to which input `index` is brought, so that the op gets `sizes`; None: the input has them."""
    if isinstance(node.get_placement(index), Sizes):
        require(sizes == node.read_sizes(index))
        return None
    if all(size.rows is None for size in sizes):
        return WHOLE
    # The input is replicated. Each rank computes its numbers of rows in place of the script's, and repeats the others.
    require(all(size.is_known for size in sizes))
    return Sizes(sizes)


@register_rule("BroadcastGradientArgs")
def find_broadcast_axes(node: Node) -> Decision:
    """The axes over which gradients of a broadcast are summed: `NamedAxes` tells which axes an output names.

    TensorFlow names the axes of size 1 and the missing axes of the shorter shape. If both shapes are equal, it names
    none. The rule applies this to the script's shapes, because a slice may have one row where the batch has several.
    A size that counts rows of the batch is never 1 in the script, since ranks do not share steps of a single row. A
    number of rows that a mask selects may be 1, and such an axis must not be named on one rank alone.
    """
    first, second = node.read_sizes(0), node.read_sizes(1)
    axis_count = max(len(first), len(second))
    # Missing axes first.
    padded_shapes = [[Size(None, 1)] * (axis_count - len(sizes)) + list(sizes) for sizes in (first, second)]
    may_be_equal = len(first) == len(second) and all(map(_may_be_equal, first, second))
    are_equal = may_be_equal and first == second and Size() not in first  # two unknown sizes may differ

    def is_named(size: Size) -> bool | None:
        """Whether TensorFlow names an axis of this size; None if that is unknown."""
        if size.rows is not None or are_equal:
            return False
        if size.value is None or (size.value == 1 and may_be_equal):
            return None
        return size.value == 1

    are_chosen = [[size.counts_chosen for size in sizes] for sizes in (first, second)]

    def emit(_: Any, *shapes: Any) -> list[Any]:
        # A mask may select a single row, of which one rank has a row and the others have none.
        shapes_of_more = [tf.where(mask & (shape == 1), 2, shape) for mask, shape in zip(are_chosen, shapes)]
        return list(tf.raw_ops.BroadcastGradientArgs(s0=shapes_of_more[0], s1=shapes_of_more[1]))

    gives = [NamedAxes(tuple(map(is_named, sizes))) for sizes in padded_shapes]
    return node.decide([], *gives, emit=emit if any(map(any, are_chosen)) else None)


def _may_be_equal(first: Size, second: Size) -> bool:
    return first.rows == second.rows and (first.value == second.value or None in (first.value, second.value))


@register_rule("DynamicStitch ParallelDynamicStitch")
def stitch(node: Node) -> Decision:
    """Merge vectors of numbers at constant positions: the shape before a reduction, with 1 for each reduced axis."""
    keep_sizes(node)  # raises NoRuleError if no number counts rows
    return move_sizes(node, range(len(node.inputs) // 2, len(node.inputs)))


@register_rule("ConcatOffset")
def find_offsets(node: Node) -> Decision:
    """For each part of a concatenation, its offset along each axis: the lengths before it along one axis, else 0.

    TensorFlow uses this in gradients of `tf.concat`. Input 0 is the axis; each other input is the shape of a part.
    """
    needs, shapes = keep_sizes(node), [node.read_sizes(index) for index in range(1, len(node.inputs))]
    axis = int(node.read_constant(0).reshape(())) % len(shapes[0])
    other_sizes = [sizes for index, sizes in enumerate(zip(*shapes)) if index != axis]
    require(all(len({size.rows for size in sizes}) == 1 for sizes in other_sizes))
    offsets, length_before = [], Size(None, 0)
    for shape in shapes:
        offsets.append(Sizes(tuple(length_before if index == axis else Size(None, 0) for index in range(len(shape)))))
        length_before = _join_lengths(length_before, shape[axis])
    return node.decide(needs, *offsets)


def _join_lengths(first: Size, second: Size) -> Size:
    """The length of two parts after concatenation along an axis."""
    if first == Size(None, 0):
        return second
    if first.rows is None and second.rows is None:
        are_known = None not in (first.value, second.value)
        return Size(None, first.value + second.value if are_known else None)  # type: ignore[operator]
    rows = [require_known(first.rows), require_known(second.rows)]  # no `Size` is a number of rows plus a constant
    require(all(part_rows.chosen is None for part_rows in rows))
    return Size(Rows(rows[0].blocks + rows[1].blocks))
