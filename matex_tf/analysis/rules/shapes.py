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
    all_known,
    partial,
    replicated,
    vector,
)
from matex_tf.analysis.rules.registry import (
    FIXED,
    MEET,
    NeverError,
    Node,
    UnprovedError,
    constant_of,
    entries,
    figures,
    rows_place,
    rule,
)

_MOST = 64  # entries of a vector that are followed


@rule("Const")
def constant(node: Node) -> Placement:
    tensor = node.op.outputs[0]
    shape = tensor.shape
    count = shape.num_elements()
    is_number = tensor.dtype.is_floating or tensor.dtype.is_integer
    found = constant_of(tensor) if is_number else None
    if found is not None and tensor.dtype.is_integer and shape.rank is not None and shape.rank <= 1 and count <= _MOST:
        return vector([Element(0, int(value)) for value in found.reshape(-1)])
    return replicated()._replace(zero=bool(found is not None and count and not found.any()))


@rule("Shape")
def shape(node: Node) -> Placement:
    return _sizes(node, 0)


@rule("ShapeN")
def shapes(node: Node) -> list[Placement]:
    return [_sizes(node, index) for index in range(len(node.inputs))]


def _sizes(node: Node, index: int) -> Placement:
    one = node.inputs[index]
    if one.shape is not None:
        return vector([Element(0, size) for size in one.shape])
    if not (one.is_sharded or one.is_figure or one.kind == ROW_NUMBERS or one.is_mixed):
        raise UnprovedError("the size of something is asked of which nothing is known")
    elements = [Element(0, size) for size in node.shape(index)]
    if one.is_sharded or one.kind == ROW_NUMBERS:
        unit = None if one.blocks and None in one.blocks else sum(one.blocks) if one.blocks else one.unit
        rows = Element(-1, unit=unit) if one.even else Element(None, sums=True)
        elements[one.axis if one.is_sharded else 0] = rows
    return vector(elements)


@rule("Size")
def size(node: Node) -> Placement:
    elements = entries(_sizes(node, 0))
    if any(one.sums for one in elements):
        return partial(0)
    counts = all_known(one.unit if one.power == -1 else one.value for one in elements)
    count = None if counts is None else math.prod(counts)
    is_rows = any(one.power == -1 for one in elements)
    return vector([Element(-1, unit=count) if is_rows else Element(0, count)])


@rule("Rank")
def rank(node: Node) -> Placement:
    return vector([Element(0, node.rank(0))])


@rule("ZerosLike", "OnesLike")
def like(node: Node) -> Placement:
    one = node.inputs[0]
    is_zero = node.type == "ZerosLike"
    if one.is_sharded:
        return one._replace(power=0, zero=is_zero)
    if one.is_figure or one.is_mixed or one.shape is not None:
        return replicated()._replace(zero=is_zero)
    raise UnprovedError("something is made in the shape of what nothing is known of")


@rule("Fill")
def fill(node: Node) -> Placement:
    sizes, value = node.inputs
    place = rows_place(sizes)
    if value.kind != REPLICATED or value.is_mixed:
        raise UnprovedError("it is filled with a figure of the rows")
    if place is None:
        node.need_same(0)
        return value._replace(elements=_short(node, value))
    return Placement(SHARDED, value.power, place, unit=entries(sizes)[place].unit, zero=value.zero)


def _short(node: Node, value: Placement) -> tuple[Element, ...] | None:
    """Of a vector of equal whole numbers its entries."""
    count = node.op.outputs[0].shape.num_elements()
    if value.elements is None or node.op.outputs[0].shape.rank != 1 or count is None or count > _MOST:
        return None
    return value.elements * count


@rule("Reshape")
def reshape(node: Node) -> Placement:
    one, sizes = node.inputs
    if not one.is_sharded:
        return _reshaped_whole(node, one, sizes)
    before, wanted = node.shape(0), sizes.elements
    if wanted is None:
        raise UnprovedError("a shape is computed that nothing is known of")
    at = one.axis
    # What is before the rows stays, or is of single entries, so that rows remain the outermost of what changes.
    while at > 0 and before[at - 1] == 1:
        at -= 1
    place = 0
    for size in before[:at]:
        if place >= len(wanted) or size is None or not _is(wanted[place], size):
            raise UnprovedError("rows of the batch are not the outermost dimension of what it takes apart")
        place += 1
    while place < len(wanted) and _is(wanted[place], 1):
        place += 1
    if place >= len(wanted):
        raise UnprovedError(FIXED)
    rows, rest = wanted[place], wanted[place + 1 :]
    is_rest, explicit = _is(rows, -1), rows.power == -1 and one.even
    if not (is_rest or explicit):
        raise UnprovedError("it names the number of rows of its batch, or makes them part of another dimension")
    if any(size.power != 0 for size in rest) or (is_rest and any(_is(size, -1) for size in rest)):
        raise UnprovedError("a shape is computed from the number of rows")
    if one.blocks:
        blocks = tuple(_divided(block, before[one.axis + 1 :], rest)[1] for block in one.blocks)
        each = None if None in one.blocks else sum(one.blocks)
        if each and explicit and rows.unit is not None and rows.unit % each == 0:
            blocks = tuple(block * (rows.unit // each) for block in one.blocks)
        if None in blocks:
            raise UnprovedError(_PARTS)
        return one._replace(axis=place, blocks=blocks)
    divides, unit = _divided(one.unit if one.even else None, before[one.axis + 1 :], rest)
    if is_rest and not divides:
        raise UnprovedError(_PARTS)
    return one._replace(axis=place, unit=unit if is_rest or rows.unit is None else rows.unit)


# The entries of a slice may be none of so many parts.
_PARTS = "it is not known whether each row gives whole rows of the shape that is wanted"


def _is(size: Element, value: int) -> bool:
    return size.power == 0 and size.value == value


def _divided(unit: int | None, inner: list[int | None], rest: tuple[Element, ...]) -> tuple[bool, int | None]:
    """Whether `unit` entries with the sizes of `inner` make whole ones with those of `rest`; and how many, if known."""
    sizes = all_known(size.value for size in rest)
    if sizes is None or -1 in sizes or 0 in sizes:
        return False, None
    known = math.prod(size for size in [unit, *inner] if size is not None)
    divides = known % math.prod(sizes) == 0
    return divides, known // math.prod(sizes) if divides and None not in [unit, *inner] else None


def _reshaped_whole(node: Node, one: Placement, sizes: Placement) -> Placement:
    if one.kind == ROW_NUMBERS and node.output_shape() in ([None], [None, 1]):
        return one
    if rows_place(sizes) is not None:
        raise NeverError("a tensor that is no row of the batch is parted by the number of rows")
    if one.elements is not None and (node.op.outputs[0].shape.rank or 0) <= 1:
        return one
    if one.kind in (REPLICATED, PARTIAL) and not one.is_mixed:
        return one._replace(elements=None)
    return figures(node)


@rule("ExpandDims")
def expand(node: Node) -> Placement:
    one = node.inputs[0]
    if not one.is_sharded:
        if one.elements is not None and node.rank(0) == 0:
            return one
        if one.kind == ROW_NUMBERS and node.rank(0) == 1 and int(node.constant(1).reshape(())) in (1, -1):
            return one
        return _kept(node, one)
    rank = node.rank(0)
    axis = int(node.constant(1).reshape(()))
    axis += rank + 1 if axis < 0 else 0
    return one._replace(axis=one.axis + (axis <= one.axis))


def _kept(node: Node, one: Placement) -> Placement:
    """The placement of a tensor without rows in another shape."""
    if one.kind in (REPLICATED, PARTIAL) and not one.is_mixed:
        node.need_same(*range(1, len(node.inputs)))
        return one._replace(elements=None)
    return figures(node)


@rule("Squeeze")
def squeeze(node: Node) -> Placement:
    one = node.inputs[0]
    if one.elements is not None or (one.kind == ROW_NUMBERS and node.op.outputs[0].shape.rank == 1):
        return one
    if not one.is_sharded:
        return _kept(node, one)
    rank = node.rank(0)
    axes = [int(axis) % rank for axis in node.attr("squeeze_dims")]
    if not axes:
        shape = node.shape(0)
        if any(size is None for index, size in enumerate(shape) if index != one.axis) or shape[one.axis] is None:
            # A slice of a single row would lose the dimension of its rows.
            raise UnprovedError("it drops all dimensions of size 1, maybe that of the rows; name an axis")
        axes = [index for index, size in enumerate(shape) if size == 1]
    if one.axis in axes:
        raise UnprovedError("it drops the dimension of the rows")
    return one._replace(axis=one.axis - sum(axis < one.axis for axis in axes))


@rule("EnsureShape")
def ensure(node: Node) -> Placement:
    one = node.inputs[0]
    wanted = node.attr("shape")
    if one.is_sharded and not wanted.unknown_rank and wanted.dim[one.axis].size >= 0:
        raise UnprovedError("it names the number of rows of its batch")
    return one


@rule("Transpose", "ConjugateTranspose")
def transpose(node: Node) -> Placement:
    one = node.inputs[0]
    if not one.is_sharded:
        return _kept(node, one)
    order = [int(axis) for axis in node.constant(1).reshape(-1)]
    return one._replace(axis=order.index(one.axis))


@rule("BroadcastTo")
def broadcast(node: Node) -> Placement:
    one, sizes = node.inputs
    place = rows_place(sizes)
    if place is None:
        if one.is_sharded:
            raise UnprovedError("it names the number of rows of its batch")
        return _kept(node, one)
    ahead = len(entries(sizes)) - node.rank(0)
    if one.is_sharded:
        if one.axis + ahead != place or not one.even:
            raise UnprovedError(MEET)
        return one._replace(axis=place)
    if one.kind != REPLICATED or one.is_mixed:
        raise NeverError("a figure of the rows is repeated for each of them")
    if place >= ahead and node.shape(0)[place - ahead] != 1:
        raise NeverError(FIXED)
    return Placement(SHARDED, one.power, place, unit=entries(sizes)[place].unit, zero=one.zero)


@rule("Tile")
def tile(node: Node) -> Placement:
    one, times = node.inputs
    place = rows_place(times)
    if one.is_sharded:
        if place is not None or times.elements is None or not _is(times.elements[one.axis], 1):
            raise UnprovedError("it repeats the rows of the batch")
        return one
    if place is None:
        return _kept(node, one)
    if one.kind != REPLICATED or one.is_mixed or node.shape(0)[place] != 1:
        raise UnprovedError(FIXED)
    return Placement(SHARDED, one.power, place, unit=entries(times)[place].unit, zero=one.zero)


@rule("Range")
def numbers(node: Node) -> Placement:
    start, limit, delta = node.inputs
    found = all_known(one.elements[0] if one.elements else None for one in (start, limit, delta))
    if found is None:
        return figures(node)
    values = all_known(one.value if one.power == 0 else None for one in found)
    if values is not None and values[2] and len(range(*values)) <= _MOST:
        return vector([Element(0, value) for value in range(*values)])
    first, last, step = found
    if limit.power == -1 and _is(first, 0) and _is(step, 1) and last.unit != 0:
        return Placement(ROW_NUMBERS, unit=last.unit)
    return figures(node)
