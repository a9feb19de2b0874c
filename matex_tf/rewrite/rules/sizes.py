"""Rules for sizes of tensors, which count rows, and for their use in gradients."""

from __future__ import annotations

from typing import Any

from matex_tf.rewrite.nodes import Decision, Node, NoRuleError
from matex_tf.rewrite.placement import LIST, SIZES, WHOLE, Placement, Rows, Size, make_sizes, multiply_sizes
from matex_tf.rewrite.rules.registry import register_rule


def describe_shape(node: Node, index: int) -> list[Size]:
    """The shape of an input, number by number."""
    placement, shape = node.get_placement(index), node.read_shape(index)
    if placement.kind == LIST:
        raise NoRuleError
    sizes = [Size(None, size) for size in shape]
    if placement.is_sharded:
        sizes[placement.axis] = Size(placement.rows)
    return sizes


@register_rule("Shape")
def shape(node: Node) -> Decision:
    return node.decide([None], make_sizes(describe_shape(node, 0)))


@register_rule("ShapeN")
def shapes(node: Node) -> Decision:
    count = len(node.inputs)
    return Decision([None] * count, [make_sizes(describe_shape(node, index)) for index in range(count)])


@register_rule("Size")
def size(node: Node) -> Decision:
    found = multiply_sizes(describe_shape(node, 0))
    return node.decide_whole() if found is None else node.decide([None], make_sizes([found]))


@register_rule("Rank")
def rank(node: Node) -> Decision:
    node.count_axes(0)
    return node.decide([None], WHOLE)


def find_rows(sizes: tuple[Size, ...]) -> tuple[int, Rows] | None:
    """The axis of a shape that counts rows, and these rows; None if no axis does."""
    row_axes = [(axis, size.rows) for axis, size in enumerate(sizes) if size.rows is not None]
    if len(row_axes) > 1:
        raise NoRuleError
    return row_axes[0] if row_axes else None


def read_along(node: Node, index: int, at: int, placement: Placement, length: int | None) -> tuple[Size, ...]:
    """The numbers of an input. The number at `at` is a position or a size along the axis with the rows of `placement`.

    If this number and the axis' `length` are constants, the number counts rows if it is a multiple of the rows of the
    batch.
    """
    sizes, unit = node.read_sizes(index), placement.rows.unit
    number = sizes[at].value
    if sizes[at].rows is not None or not (number and length and unit) or number * unit % length:
        return sizes
    return (*sizes[:at], Size(Rows((number * unit // length,))), *sizes[at + 1 :])


def find_need(node: Node, index: int, sizes: tuple[Size, ...]) -> Placement | None:
    """The placement to which an input of numbers is brought so that they are `sizes`; None: unchanged."""
    if node.get_placement(index).kind == SIZES:
        if sizes != node.read_sizes(index):
            raise NoRuleError
        return None
    if all(size.rows is None for size in sizes):
        return WHOLE
    if any(size.value is None if size.rows is None else size.rows.unit is None for size in sizes):
        raise NoRuleError
    return make_sizes(sizes)


def mark_taker(emit: Any) -> Any:
    """Mark a function that creates ops of the copy and asks the copy, its first argument, for the rank's rows."""
    emit.takes_copy = True
    return emit


@register_rule("BroadcastGradientArgs")
def find_broadcast_axes(node: Node) -> Decision:
    """The axes over which gradients of a broadcast are summed, by the script's shapes and not by a slice's.

    TensorFlow names the axes of size 1, and missing axes; none if both shapes are equal. A batch has more than one row:
    steps of a single row are not shared.
    """
    needs = [WHOLE, WHOLE]
    first, second = (value.sizes for value in node.inputs)
    if first is None or second is None:
        return node.decide(needs, WHOLE, WHOLE)
    count = max(len(first), len(second))
    padded = [[Size(None, 1)] * (count - len(sizes)) + list(sizes) for sizes in (first, second)]
    pairs = list(zip(*padded))
    may_be_equal = len(first) == len(second) and all(_may_be_equal(a, b) for a, b in pairs)
    are_equal = may_be_equal and all(a == b and (a.rows or a.value is not None) for a, b in pairs)

    def is_named(size: Size) -> bool | None:
        """Whether TensorFlow names an axis of this size; None if that is unknown."""
        if size.rows is not None or are_equal:
            return False
        if size.value is None or (size.value == 1 and may_be_equal):
            return None
        return size.value == 1

    return Decision(needs, [WHOLE._replace(axes=tuple(map(is_named, sizes))) for sizes in padded])


def _may_be_equal(first: Size, second: Size) -> bool:
    return first.rows == second.rows and (first.value == second.value or None in (first.value, second.value))


@register_rule("DynamicStitch ParallelDynamicStitch")
def stitch(node: Node) -> Decision:
    """Merge vectors of numbers by constant indices: the shape before a reduction, with 1 for each reduced axis."""
    half = len(node.inputs) // 2
    if all(node.get_placement(index).kind != SIZES for index in range(half, len(node.inputs))):
        return node.decide_whole()
    made: dict[int, Size] = {}
    for index in range(half):
        places, sizes = node.read_constant(index).reshape(-1), node.read_sizes(half + index)
        made.update(zip(map(int, places), sizes, strict=True))
    if sorted(made) != list(range(len(made))):
        raise NoRuleError
    needs = [
        *[WHOLE] * half,
        *(None if node.get_placement(half + index).kind == SIZES else WHOLE for index in range(half)),
    ]
    return node.decide(needs, make_sizes([made[place] for place in range(len(made))]))


@register_rule("ConcatOffset")
def find_offsets(node: Node) -> Decision:
    """The offset of each part of a concatenation."""
    if all(placement.kind != SIZES for placement in node.placements[1:]):
        return node.decide_whole()
    axis = int(node.read_constant(0).reshape(()))
    shapes = [node.read_sizes(index) for index in range(1, len(node.inputs))]
    axis %= len(shapes[0])
    if any(len({size.rows for size in sizes}) > 1 for at, sizes in enumerate(zip(*shapes)) if at != axis):
        raise NoRuleError
    gives, before = [], Size(None, 0)
    for shape in shapes:
        gives.append(make_sizes([before if at == axis else Size(None, 0) for at in range(len(shape))]))
        before = _join_lengths(before, shape[axis])
    needs = [WHOLE, *(None if placement.kind == SIZES else WHOLE for placement in node.placements[1:])]
    return Decision(needs, gives)


def _join_lengths(first: Size, second: Size) -> Size:
    """The length of two parts after concatenation along an axis."""
    if first.rows is None and second.rows is None:
        known = None not in (first.value, second.value)
        return Size(None, first.value + second.value if known else None)  # type: ignore[operator]
    if first == Size(None, 0) or second.rows is None or first.rows is None:
        if first == Size(None, 0):
            return second
        raise NoRuleError
    if first.rows.chosen is not None or second.rows.chosen is not None:
        raise NoRuleError
    return Size(Rows(first.rows.blocks + second.rows.blocks))
