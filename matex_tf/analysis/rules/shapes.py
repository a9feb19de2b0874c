"""Sizes of tensors, what is filled by them, and tensors whose entries stay in their order."""

from __future__ import annotations

import math

from matex_tf.analysis.placement import (
    PARTIAL,
    REPLICATED,
    ROW_NUMBERS,
    SHARDED,
    Element,
    Placement,
    make_partial,
    make_replicated,
    make_vector,
    require_known,
)
from matex_tf.analysis.rules.registry import (
    FIXED,
    MEET,
    NeverError,
    Node,
    UnprovedError,
    combine_figures,
    find_constant,
    find_rows_place,
    list_entries,
    register_rule,
)

_MOST = 64  # entries of a vector that are followed


@register_rule("Const")
def constant(node: Node) -> Placement:
    tensor = node.op.outputs[0]
    shape = tensor.shape
    count = shape.num_elements()
    is_number = tensor.dtype.is_floating or tensor.dtype.is_integer
    found = find_constant(tensor) if is_number else None
    if found is not None and tensor.dtype.is_integer and shape.rank is not None and shape.rank <= 1 and count <= _MOST:
        return make_vector([Element(0, int(value)) for value in found.reshape(-1)])
    return make_replicated()._replace(zero=bool(found is not None and count and not found.any()))


@register_rule("Shape")
def shape(node: Node) -> Placement:
    return _describe_sizes(node, 0)


@register_rule("ShapeN")
def shapes(node: Node) -> list[Placement]:
    return [_describe_sizes(node, index) for index in range(len(node.inputs))]


def _describe_sizes(node: Node, index: int) -> Placement:
    one = node.inputs[index]
    if one.shape is not None:
        return make_vector([Element(0, size) for size in one.shape])
    if not (one.is_sharded or one.is_figure or one.kind == ROW_NUMBERS or one.is_mixed):
        raise UnprovedError("the size of something is asked of which nothing is known")
    elements = [Element(0, size) for size in node.get_shape(index)]
    if one.is_sharded or one.kind == ROW_NUMBERS:
        unit = None if one.blocks and None in one.blocks else sum(one.blocks) if one.blocks else one.unit
        rows = Element(-1, unit=unit) if one.even else Element(None, sums=True)
        elements[one.axis if one.is_sharded else 0] = rows
    return make_vector(elements)


@register_rule("Size")
def size(node: Node) -> Placement:
    elements = list_entries(_describe_sizes(node, 0))
    if any(one.sums for one in elements):
        return make_partial(0)
    counts = require_known(one.unit if one.power == -1 else one.value for one in elements)
    count = None if counts is None else math.prod(counts)
    is_rows = any(one.power == -1 for one in elements)
    return make_vector([Element(-1, unit=count) if is_rows else Element(0, count)])


@register_rule("Rank")
def rank(node: Node) -> Placement:
    return make_vector([Element(0, node.count_axes(0))])


@register_rule("ZerosLike", "OnesLike")
def like(node: Node) -> Placement:
    one = node.inputs[0]
    is_zero = node.type == "ZerosLike"
    if one.is_sharded:
        return one._replace(power=0, zero=is_zero)
    if one.is_figure or one.is_mixed or one.shape is not None:
        return make_replicated()._replace(zero=is_zero)
    raise UnprovedError("something is made in the shape of what nothing is known of")


@register_rule("Fill")
def fill(node: Node) -> Placement:
    sizes, value = node.inputs
    place = find_rows_place(sizes)
    if value.kind != REPLICATED or value.is_mixed:
        raise UnprovedError("it is filled with a figure of the rows")
    if place is None:
        node.need_same(0)
        return value._replace(elements=_list_short(node, value))
    return Placement(SHARDED, value.power, place, unit=list_entries(sizes)[place].unit, zero=value.zero)


def _list_short(node: Node, value: Placement) -> tuple[Element, ...] | None:
    """Of a vector of equal whole numbers its entries."""
    count = node.op.outputs[0].shape.num_elements()
    if value.elements is None or node.op.outputs[0].shape.rank != 1 or count is None or count > _MOST:
        return None
    return value.elements * count


@register_rule("Reshape")
def reshape(node: Node) -> Placement:
    one, sizes = node.inputs
    if not one.is_sharded:
        return _reshape_whole(node, one, sizes)
    before, wanted = node.get_shape(0), sizes.elements
    if wanted is None:
        raise UnprovedError("a shape is computed that nothing is known of")
    at = one.axis
    # What is before the rows stays, or is of single entries, so that rows remain the outermost of what changes.
    while at > 0 and before[at - 1] == 1:
        at -= 1
    place = 0
    for size in before[:at]:
        if place >= len(wanted) or size is None or not _is_equal(wanted[place], size):
            raise UnprovedError("rows of the batch are not the outermost dimension of what it takes apart")
        place += 1
    while place < len(wanted) and _is_equal(wanted[place], 1):
        place += 1
    if place >= len(wanted):
        raise UnprovedError(FIXED)
    rows, rest = wanted[place], wanted[place + 1 :]
    is_rest, explicit = _is_equal(rows, -1), rows.power == -1 and one.even
    if not (is_rest or explicit):
        raise UnprovedError("it names the number of rows of its batch, or makes them part of another dimension")
    if any(size.power != 0 for size in rest) or (is_rest and any(_is_equal(size, -1) for size in rest)):
        raise UnprovedError("a shape is computed from the number of rows")
    if one.blocks:
        blocks = tuple(_divide_unit(block, before[one.axis + 1 :], rest)[1] for block in one.blocks)
        each = None if None in one.blocks else sum(one.blocks)
        if each and explicit and rows.unit is not None and rows.unit % each == 0:
            blocks = tuple(block * (rows.unit // each) for block in one.blocks)
        if None in blocks:
            raise UnprovedError(_PARTS)
        return one._replace(axis=place, blocks=blocks)
    divides, unit = _divide_unit(one.unit if one.even else None, before[one.axis + 1 :], rest)
    if is_rest and not divides:
        raise UnprovedError(_PARTS)
    return one._replace(axis=place, unit=unit if is_rest or rows.unit is None else rows.unit)


# The entries of a slice may be none of so many parts.
_PARTS = "it is not known whether each row gives whole rows of the shape that is wanted"


def _is_equal(size: Element, value: int) -> bool:
    return size.power == 0 and size.value == value


def _divide_unit(unit: int | None, inner: list[int | None], rest: tuple[Element, ...]) -> tuple[bool, int | None]:
    """Whether `unit` entries with the sizes of `inner` make whole ones with those of `rest`; and how many, if known."""
    sizes = require_known(size.value for size in rest)
    if sizes is None or -1 in sizes or 0 in sizes:
        return False, None
    known = math.prod(size for size in [unit, *inner] if size is not None)
    divides = known % math.prod(sizes) == 0
    return divides, known // math.prod(sizes) if divides and None not in [unit, *inner] else None


def _reshape_whole(node: Node, one: Placement, sizes: Placement) -> Placement:
    if one.kind == ROW_NUMBERS and node.get_output_shape() in ([None], [None, 1]):
        return one
    if find_rows_place(sizes) is not None:
        raise NeverError("a tensor that is no row of the batch is parted by the number of rows")
    if one.elements is not None and (node.op.outputs[0].shape.rank or 0) <= 1:
        return one
    if one.kind in (REPLICATED, PARTIAL) and not one.is_mixed:
        return one._replace(elements=None)
    return combine_figures(node)


@register_rule("ExpandDims")
def expand(node: Node) -> Placement:
    one = node.inputs[0]
    if not one.is_sharded:
        if one.elements is not None and node.count_axes(0) == 0:
            return one
        if one.kind == ROW_NUMBERS and node.count_axes(0) == 1 and int(node.read_constant(1).reshape(())) in (1, -1):
            return one
        return _keep_figures(node, one)
    rank = node.count_axes(0)
    axis = int(node.read_constant(1).reshape(()))
    axis += rank + 1 if axis < 0 else 0
    return one._replace(axis=one.axis + (axis <= one.axis))


def _keep_figures(node: Node, one: Placement) -> Placement:
    """The placement of a tensor without rows in another shape."""
    if one.kind in (REPLICATED, PARTIAL) and not one.is_mixed:
        node.need_same(*range(1, len(node.inputs)))
        return one._replace(elements=None)
    return combine_figures(node)


@register_rule("Squeeze")
def squeeze(node: Node) -> Placement:
    one = node.inputs[0]
    if one.elements is not None or (one.kind == ROW_NUMBERS and node.op.outputs[0].shape.rank == 1):
        return one
    if not one.is_sharded:
        return _keep_figures(node, one)
    rank = node.count_axes(0)
    axes = [int(axis) % rank for axis in node.read_attribute("squeeze_dims")]
    if not axes:
        shape = node.get_shape(0)
        if any(size is None for index, size in enumerate(shape) if index != one.axis) or shape[one.axis] is None:
            # A slice of a single row would lose the dimension of its rows.
            raise UnprovedError("it drops all dimensions of size 1, maybe that of the rows; name an axis")
        axes = [index for index, size in enumerate(shape) if size == 1]
    if one.axis in axes:
        raise UnprovedError("it drops the dimension of the rows")
    return one._replace(axis=one.axis - sum(axis < one.axis for axis in axes))


@register_rule("EnsureShape")
def ensure(node: Node) -> Placement:
    one = node.inputs[0]
    wanted = node.read_attribute("shape")
    if one.is_sharded and not wanted.unknown_rank and wanted.dim[one.axis].size >= 0:
        raise UnprovedError("it names the number of rows of its batch")
    return one


@register_rule("Transpose", "ConjugateTranspose")
def transpose(node: Node) -> Placement:
    one = node.inputs[0]
    if not one.is_sharded:
        return _keep_figures(node, one)
    order = [int(axis) for axis in node.read_constant(1).reshape(-1)]
    return one._replace(axis=order.index(one.axis))


@register_rule("BroadcastTo")
def broadcast(node: Node) -> Placement:
    one, sizes = node.inputs
    place = find_rows_place(sizes)
    if place is None:
        if one.is_sharded:
            raise UnprovedError("it names the number of rows of its batch")
        return _keep_figures(node, one)
    ahead = len(list_entries(sizes)) - node.count_axes(0)
    if one.is_sharded:
        if one.axis + ahead != place or not one.even:
            raise UnprovedError(MEET)
        return one._replace(axis=place)
    if one.kind != REPLICATED or one.is_mixed:
        raise NeverError("a figure of the rows is repeated for each of them")
    if place >= ahead and node.get_shape(0)[place - ahead] != 1:
        raise NeverError(FIXED)
    return Placement(SHARDED, one.power, place, unit=list_entries(sizes)[place].unit, zero=one.zero)


@register_rule("Tile")
def tile(node: Node) -> Placement:
    one, times = node.inputs
    place = find_rows_place(times)
    if one.is_sharded:
        if place is not None or times.elements is None or not _is_equal(times.elements[one.axis], 1):
            raise UnprovedError("it repeats the rows of the batch")
        return one
    if place is None:
        return _keep_figures(node, one)
    if one.kind != REPLICATED or one.is_mixed or node.get_shape(0)[place] != 1:
        raise UnprovedError(FIXED)
    return Placement(SHARDED, one.power, place, unit=list_entries(times)[place].unit, zero=one.zero)


@register_rule("Range")
def numbers(node: Node) -> Placement:
    start, limit, delta = node.inputs
    found = require_known(one.elements[0] if one.elements else None for one in (start, limit, delta))
    if found is None:
        return combine_figures(node)
    values = require_known(one.value if one.power == 0 else None for one in found)
    if values is not None and values[2] and len(range(*values)) <= _MOST:
        return make_vector([Element(0, value) for value in range(*values)])
    first, last, step = found
    if limit.power == -1 and _is_equal(first, 0) and _is_equal(step, 1) and last.unit != 0:
        return Placement(ROW_NUMBERS, unit=last.unit)
    return combine_figures(node)
