"""Tensors put together, taken apart and moved along their axes."""

from __future__ import annotations

from matex_tf.analysis.placement import (
    REPLICATED,
    Element,
    Placement,
    as_partial,
    choose_order,
    is_aligned,
    make_partial,
    make_replicated,
    make_unknown,
    make_vector,
    require_known,
)
from matex_tf.analysis.rules.registry import (
    FIGURE,
    FIXED,
    MEET,
    WEIGHS,
    Node,
    UnprovedError,
    combine_figures,
    need_fit,
    register_rule,
)

BY_NUMBER = "it takes rows out of the batch by their number"


def find_common(node: Node, indexes: range | list[int], below: bool = False) -> Placement | None:
    """The one placement of all these inputs; None if none of them is sharded.

    below: their rows are put below one another, not beside one another.

    Raises:
        UnprovedError: some are sharded, others are not or otherwise.
    """
    found = [node.inputs[index] for index in indexes]
    sharded = [one for one in found if one.is_sharded]
    if not sharded:
        return None
    first = choose_order(sharded)
    for one in found:
        if not one.is_sharded:
            raise UnprovedError(FIXED if one.kind == REPLICATED else FIGURE)
        matches = one.even and first.even if below else is_aligned(one, first)
        if one.axis != first.axis or not (one is first or matches):
            raise UnprovedError(MEET)
    powers = {one.power for one in sharded if not one.zero}
    if len(powers) > 1:
        raise UnprovedError(WEIGHS)
    power = powers.pop() if powers else first.power
    units = {one.unit for one in sharded}
    return first._replace(
        power=power, unit=units.pop() if len(units) == 1 else None, zero=all(one.zero for one in sharded)
    )


def _combine_figures(node: Node, indexes: range | list[int]) -> Placement:
    """The placement of figures without rows beside one another."""
    found = [node.inputs[index] for index in indexes]
    if all(one.is_same for one in found):
        return make_replicated()
    parts = require_known(as_partial(one) for one in found if not one.zero)
    if parts is not None and len({one.power for one in parts}) == 1:
        return parts[0]
    return combine_figures(node, indexes)


@register_rule("Pack")
def pack(node: Node) -> Placement:
    if node.count_axes(0) == 0:
        numbers = require_known(_list_entries(node, index, 1) for index in range(len(node.inputs)))
        if numbers is not None and not all(one.is_same and one.elements is None for one in node.inputs):
            return make_vector([entry for entries in numbers for entry in entries])
    every = range(len(node.inputs))
    found = find_common(node, every)
    if found is None:
        return _combine_figures(node, every)
    axis = node.read_attribute("axis") % (node.count_axes(0) + 1)
    return found._replace(axis=found.axis + (axis <= found.axis))


def _list_entries(node: Node, index: int, count: int | None) -> tuple[Element, ...] | None:
    """The entries of a scalar or vector that is the same for all, or grows with the rows."""
    one = node.inputs[index]
    if one.elements is not None:
        return one.elements
    if one.kind != REPLICATED or count is None:
        return None
    return (Element(one.power),) * count


@register_rule("Unpack")
def unpack(node: Node) -> list[Placement] | Placement:
    one = node.inputs[0]
    count = len(node.op.outputs)
    if one.elements is not None and node.count_axes(0) == 1:
        return [make_partial(0) if element.sums else make_vector([element]) for element in one.elements]
    if not one.is_sharded:
        return [_combine_figures(node, [0])] * count
    axis = node.read_attribute("axis") % node.count_axes(0)
    if axis == one.axis:
        raise UnprovedError(BY_NUMBER)
    return [one._replace(axis=one.axis - (axis < one.axis))] * count


@register_rule("ConcatV2")
def concatenate(node: Node) -> Placement:
    parts = range(len(node.inputs) - 1)
    if node.count_axes(0) == 1 and any(node.inputs[index].elements is not None for index in parts):
        numbers = require_known(_list_entries(node, index, node.get_shape(index)[0]) for index in parts)
        if numbers is not None:
            return make_vector([entry for entries in numbers for entry in entries])
    if not any(node.inputs[index].is_sharded for index in parts):
        return _combine_figures(node, parts)
    axis = node.list_axes(len(node.inputs) - 1, node.count_axes(0))[0]
    below = len(parts) > 1 and node.inputs[0].is_sharded and axis == node.inputs[0].axis
    found = find_common(node, parts, below)
    assert found is not None  # one is sharded
    if not below:
        return found
    # One batch below the other: on each rank its part of both.
    blocks = [node.inputs[index].blocks or (node.inputs[index].unit,) for index in parts]
    return found._replace(blocks=tuple(block for part in blocks for block in part), unit=None)


@register_rule("Split", "SplitV")
def split(node: Node) -> list[Placement]:
    data, at = (1, 0) if node.type == "Split" else (0, 2)
    one, count = node.inputs[data], len(node.op.outputs)
    if not one.is_sharded:
        node.need_same(*(index for index in range(len(node.inputs)) if index != data))
        if one.elements is not None and node.type == "Split":
            each = len(one.elements) // count
            return [make_vector(one.elements[index * each : (index + 1) * each]) for index in range(count)]
        if one.elements is not None:
            ends = [int(size) for size in node.read_constant(1)]
            if -1 in ends:
                ends[ends.index(-1)] = len(one.elements) - sum(ends) - 1
            starts = [sum(ends[:index]) for index in range(count)]
            return [make_vector(one.elements[start : start + size]) for start, size in zip(starts, ends)]
        return [_combine_figures(node, [data])] * count
    node.need_same(*(index for index in range(len(node.inputs)) if index != data))
    if one.axis not in node.list_axes(at, node.count_axes(data)):
        return [one] * count
    # Several batches that were put below one another come apart again.
    if node.type == "SplitV" or None in one.blocks or sum(one.blocks) % count:
        raise UnprovedError(BY_NUMBER)
    each = sum(one.blocks) // count
    return [take_blocks(one, index * each, (index + 1) * each) for index in range(count)]


def take_blocks(one: Placement, begin: int, end: int) -> Placement:
    """The placement of the entries from `begin` to `end`, counted in rows, along the rows' axis.

    Raises:
        UnprovedError: they are no blocks.
    """
    bounds = [sum(one.blocks[:index]) for index in range(len(one.blocks) + 1)]
    if begin not in bounds or end not in bounds or end <= begin:
        raise UnprovedError(BY_NUMBER)
    found = one.blocks[bounds.index(begin) : bounds.index(end)]
    return one._replace(blocks=found if len(found) > 1 else (), unit=found[0] if len(found) == 1 else None)


@register_rule("Pad", "PadV2", "MirrorPad")
def pad(node: Node) -> Placement:
    one = node.inputs[0]
    if not one.is_sharded:
        return combine_figures(node)
    if node.read_constant(1)[one.axis].any():
        raise UnprovedError("it adds rows to the batch")
    if len(node.inputs) > 2 and not node.inputs[2].zero:
        node.need_same(2)
        if one.power:
            raise UnprovedError(WEIGHS)
    return one


def _keep_rows_along(node: Node, at: int) -> Placement:
    one = node.inputs[0]
    if not one.is_sharded:
        return combine_figures(node)
    if one.axis in node.list_axes(at, node.count_axes(0)):
        raise UnprovedError(MEET)
    return one


@register_rule("Cumsum", "ReverseV2")
def along_linear(node: Node) -> Placement:
    return _keep_rows_along(node, 1)


@register_rule("Roll")
def roll(node: Node) -> Placement:
    node.need_same(1)
    return _keep_rows_along(node, 2)


@register_rule("Cumprod", "CumulativeLogsumexp")
def along(node: Node) -> Placement:
    found = _keep_rows_along(node, 1)
    if found.is_sharded and found.power:
        raise UnprovedError(WEIGHS)
    return found


@register_rule("ReverseSequence")
def reverse_sequence(node: Node) -> Placement:
    one, lengths = node.inputs
    if not (one.is_sharded or lengths.is_sharded):
        return combine_figures(node)
    need_fit(one, lengths)
    if node.read_attribute("batch_dim") != one.axis or lengths.power:
        raise UnprovedError(MEET)
    return one


@register_rule("SpaceToBatchND")
def space_to_batch(node: Node) -> Placement:
    """Each of so many copies of the batch, one below the other, has its part of every image."""
    one = node.inputs[0]
    if not one.is_sharded:
        return combine_figures(node)
    node.need_same(2)
    if one.axis != 0 or not one.even or one.blocks or one.unit is None:
        raise UnprovedError(MEET)
    return one._replace(blocks=(one.unit,) * int(node.read_constant(1).prod()), unit=None)


@register_rule("BatchToSpaceND")
def batch_to_space(node: Node) -> Placement:
    one = node.inputs[0]
    if not one.is_sharded:
        return combine_figures(node)
    node.need_same(2)
    count = int(node.read_constant(1).prod())
    if one.axis != 0 or len(one.blocks) != count or None in one.blocks or len(set(one.blocks)) > 1:
        raise UnprovedError(MEET)
    return one._replace(blocks=(), unit=one.blocks[0])


@register_rule("MatrixDiagV3", "MatrixDiagPartV3", "MatrixBandPart", "MatrixSetDiagV3", "MatrixInverse", "Cholesky",
      "MatrixDeterminant", "LogMatrixDeterminant", "MatrixTriangularSolve", "MatrixSolve", "SelfAdjointEigV2", "Qr",
      "Svd", "FFT", "FFT2D", "IFFT", "IFFT2D", "RFFT", "RFFT2D", "IRFFT", "IRFFT2D")  # fmt: skip
def of_each_matrix(node: Node) -> list[Placement]:
    """What is computed of each matrix (or vector) of a batch by itself."""
    one = node.inputs[0]
    inner = {"MatrixDiagV3": 1, "FFT": 1, "IFFT": 1, "RFFT": 1, "IRFFT": 1}.get(node.type, 2)
    count = len(node.op.outputs)
    found = [other for other in node.inputs if other.is_sharded]
    if not found:
        return [combine_figures(node)] * count
    need_fit(*found)
    for index, other in enumerate(node.inputs):
        if other.is_sharded:
            is_diagonal = node.type == "MatrixSetDiagV3" and index == 1
            most = node.count_axes(0) - 2 if is_diagonal else node.count_axes(index) - inner
            if other.power or other.axis != found[0].axis or other.axis >= most:
                raise UnprovedError(MEET)
            if node.count_axes(index) != node.count_axes(0) and node.type in ("MatrixTriangularSolve", "MatrixSolve"):
                raise UnprovedError(MEET)
        elif not (other.is_same and index > 0 and node.count_axes(index) <= 1):
            raise UnprovedError(FIXED)
    if (node.type == "Svd" and not node.read_attribute("compute_uv")) or (
        node.type == "SelfAdjointEigV2" and not node.read_attribute("compute_v")
    ):
        return [one, *[make_unknown(node.op, "it was not asked to compute that")] * (count - 1)]
    return [one] * count


@register_rule("PlaceholderWithDefault", "Placeholder")
def placeholder(node: Node) -> Placement:
    return make_replicated()
