"""Parts of tensors that begin and end at a place: whole rows, or the first or last of them."""

from __future__ import annotations

from matex_tf.analysis.placement import PARTIAL, REPLICATED, Element, Placement, make_partial, make_unknown, make_vector
from matex_tf.analysis.rules.arrays import BY_NUMBER, take_blocks
from matex_tf.analysis.rules.registry import (
    SIZES,
    Node,
    UnprovedError,
    combine_figures,
    list_entries,
    register_rule,
)


@register_rule("StridedSlice")
def strided_slice(node: Node) -> Placement:
    one = node.inputs[0]
    if one.elements is not None and node.count_axes(0) == 1:
        return _slice_elements(node, one)
    if not one.is_sharded:
        if one.kind in (REPLICATED, PARTIAL) and not one.is_mixed:
            node.need_same(*range(1, len(node.inputs)))
            return one._replace(elements=None)
        return combine_figures(node)
    made = 0  # dimensions of the result so far
    dimension = 0  # of what is sliced
    found = None
    single: list[int | None] | None = None  # the shape of a single row
    ellipsis, new, shrink = (node.read_attribute(f"{name}_mask") for name in ("ellipsis", "new_axis", "shrink_axis"))
    begin, end = node.read_attribute("begin_mask"), node.read_attribute("end_mask")
    entries = node.get_shape(1)[0]
    if entries is None:
        raise UnprovedError(BY_NUMBER)
    named = sum(1 for index in range(entries) if not (new | ellipsis) >> index & 1)
    for index in range(entries):
        bit = 1 << index
        if ellipsis & bit:
            skipped = node.count_axes(0) - named
            if dimension <= one.axis < dimension + skipped:
                found = one._replace(axis=made + one.axis - dimension)
            made, dimension = made + skipped, dimension + skipped
        elif new & bit:
            made += 1
        elif dimension == one.axis:
            if _is_single(node, index, begin & bit, end & bit, shrink & bit):
                single = node.get_output_shape()
                if not shrink & bit:
                    single[made] = 1
            elif shrink & bit or not _is_element(node, 3, index, 1):
                raise UnprovedError(BY_NUMBER)
            else:
                found = _slice_rows(node, index, begin & bit, end & bit)._replace(axis=made)
            made, dimension = made + (0 if shrink & bit else 1), dimension + 1
        else:
            at = [] if begin & bit else [1]
            at += [] if end & bit or shrink & bit else [2]
            if not all(_is_same(node, which, index) for which in [*at, 3]):
                raise UnprovedError("it is as long as a figure of the rows says")
            made, dimension = made + (0 if shrink & bit else 1), dimension + 1
    if single is not None:
        return make_unknown(node.op, BY_NUMBER)._replace(shape=tuple(single))
    return found or one._replace(axis=made + one.axis - dimension)


def _is_single(node: Node, index: int, from_start: int, to_end: int, shrink: int) -> bool:
    """Whether it takes the first or the last row, which every slice has, if another one."""
    one = node.inputs[0]
    if not one.even or one.blocks or not _is_element(node, 3, index, 1):
        return False
    is_first = (not shrink and from_start) or _is_element(node, 1, index, 0)
    if shrink:
        return bool(is_first) or _is_element(node, 1, index, -1)
    return bool(
        (is_first and not to_end and _is_element(node, 2, index, 1)) or (to_end and _is_element(node, 1, index, -1))
    )


def _find_element(node: Node, which: int, index: int) -> Element | None:
    found = node.inputs[which].elements
    return found[index] if found is not None and index < len(found) else None


def _is_element(node: Node, which: int, index: int, value: int) -> bool:
    one = _find_element(node, which, index)
    return one is not None and one.power == 0 and one.value == value


def _is_same(node: Node, which: int, index: int) -> bool:
    one = _find_element(node, which, index)
    return node.inputs[which].is_same if one is None else one.power == 0


def _slice_rows(node: Node, index: int, from_start: int, to_end: int) -> Placement:
    """The placement of a slice along the rows' axis: of all of them, or of one batch of several below one another."""
    one = node.inputs[0]
    begin = 0 if from_start else _count_rows(_find_element(node, 1, index))
    end = None if to_end else _count_rows(_find_element(node, 2, index))
    if begin == 0 and to_end:
        return one
    if begin is None or not one.even or (end is None and not to_end):
        raise UnprovedError(BY_NUMBER)
    if one.blocks and None not in one.blocks:
        total = sum(one.blocks)
        return take_blocks(one, begin, total if end is None else min(end, total))
    if begin == 0 and one.unit is not None and end is not None and end >= one.unit:
        return one
    raise UnprovedError(BY_NUMBER)


def _count_rows(one: Element | None) -> int | None:
    """How many times the number of rows an entry is."""
    if one is None:
        return None
    return 0 if one.power == 0 and one.value == 0 else one.unit if one.power == -1 else None


def _slice_elements(node: Node, one: Placement) -> Placement:
    if node.read_attribute("ellipsis_mask") or node.read_attribute("new_axis_mask"):
        raise UnprovedError(SIZES)
    first, last, stride = (_read_value(node, index) for index in (1, 2, 3))
    begin = None if node.read_attribute("begin_mask") & 1 else first
    end = None if node.read_attribute("end_mask") & 1 else last
    if node.read_attribute("shrink_axis_mask") & 1:
        return make_scalar(list_entries(one)[first])
    return make_vector(list_entries(one)[slice(begin, end, stride)])


def make_scalar(element: Element) -> Placement:
    """The placement of an entry by itself."""
    return make_partial(0) if element.sums else make_vector([element])


def _read_value(node: Node, index: int) -> int:
    return int(node.read_constant(index).reshape(-1)[0])


@register_rule("Slice")
def slice_(node: Node) -> Placement:
    one, begin, sizes = node.inputs
    if one.elements is not None and node.count_axes(0) == 1:
        start, count = _read_value(node, 1), _read_value(node, 2)
        return make_vector(one.elements[start : None if count < 0 else start + count])
    if not one.is_sharded:
        if one.kind in (REPLICATED, PARTIAL) and not one.is_mixed:
            node.need_same(1, 2)
            return one._replace(elements=None)
        return combine_figures(node)
    if begin.elements is None or sizes.elements is None:
        raise UnprovedError(BY_NUMBER)
    along = sizes.elements[one.axis]
    first, rows = _count_rows(begin.elements[one.axis]), _count_rows(along)
    goes_on = along.power == 0 and along.value == -1
    found = one
    if first is None or not (goes_on or rows):
        raise UnprovedError(BY_NUMBER)
    if one.blocks and None not in one.blocks and (first or not goes_on):
        found = take_blocks(one, first, sum(one.blocks) if goes_on else first + (rows or 0))
    elif first or not (goes_on or (one.even and one.unit == rows)):
        raise UnprovedError(BY_NUMBER)
    if any(
        other.power != 0 for part in (begin, sizes) for at, other in enumerate(list_entries(part)) if at != one.axis
    ):
        raise UnprovedError("it is as long as a figure of the rows says")
    return found
