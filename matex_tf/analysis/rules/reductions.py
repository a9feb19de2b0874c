"""Sums, means and other reductions: over the rows, sums and means are partial."""

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
    MEET,
    WEIGHS,
    Node,
    UnprovedError,
    combine_figures,
    list_entries,
    need_fit,
    register_rule,
)


@register_rule("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "EuclideanNorm", shaped_alike=True)
def reduce(node: Node) -> Placement:
    one = node.inputs[0]
    rounds = node.type == "Mean" and not (node.tensors[0].dtype.is_floating or node.tensors[0].dtype.is_complex)
    is_linear = node.type in ("Sum", "Mean") and not rounds
    if one.elements is not None and node.count_axes(0) == 1 and node.type in ("Prod", "Sum"):
        return _reduce_elements(node, one) if node.read_constant(1).size else one
    if not one.is_sharded:
        if one.kind in (PARTIAL, REPLICATED) and not one.is_mixed and is_linear:
            node.need_same(1)
            return one._replace(elements=None)
        return combine_figures(node)
    rank = node.count_axes(0)
    axes = node.list_axes(1, rank)
    if one.axis not in axes:
        if one.power and not is_linear:
            raise UnprovedError(WEIGHS)
        kept = node.read_attribute("keep_dims")
        return one._replace(axis=one.axis if kept else one.axis - sum(axis < one.axis for axis in axes))
    if node.type == "Sum":
        return make_partial(one.power)._replace(zero=one.zero)
    if node.type == "Mean" and one.even and is_linear:
        return make_partial(one.power + 1)
    if node.type == "Mean" and not one.even:
        raise UnprovedError("it is a mean over rows that the data choose, of which each slice has another number")
    raise UnprovedError(MEET)


def _reduce_elements(node: Node, one: Placement) -> Placement:
    """The product or sum of a vector of whole numbers."""
    found = list_entries(one)
    powers = require_known(element.power for element in found)
    if node.type == "Sum":
        power = found[0].power if len({element.power for element in found}) == 1 else None if found else 0
    else:
        power = None if powers is None else sum(powers)
    values = require_known(element.value if element.power == 0 else None for element in found)
    value = None if power != 0 or values is None else math.prod(values) if node.type == "Prod" else sum(values)
    unit = _compute_unit(node.type, found) if power == -1 else None
    return make_vector([Element(power, value, unit)])


def _compute_unit(kind: str, found: tuple[Element, ...]) -> int | None:
    """How many times the number of rows such a product or sum is."""
    counts = require_known(one.unit if one.power == -1 else one.value for one in found)
    if counts is None:
        return None
    return math.prod(counts) if kind == "Prod" else sum(counts)


@register_rule("L2Loss")
def half_the_squares(node: Node) -> Placement:
    one = node.inputs[0]
    if one.is_sharded:
        if one.power:
            raise UnprovedError(WEIGHS)
        return make_partial(0)
    return combine_figures(node)


@register_rule("ArgMax", "ArgMin")
def along_an_axis(node: Node) -> Placement:
    one = node.inputs[0]
    if not one.is_sharded:
        return combine_figures(node)
    axes = node.list_axes(1, node.count_axes(0))
    if one.axis in axes or one.power:
        raise UnprovedError(MEET)
    return one._replace(axis=one.axis - sum(axis < one.axis for axis in axes))


@register_rule("UnsortedSegmentSum", "SegmentSum")
def sums_by_number(node: Node) -> Placement:
    """Sums of rows by a number that each of them has: of the data, so that each rank has some of each."""
    data, numbers = node.inputs[:2]
    node.need_same(*range(2, len(node.inputs)))
    if data.is_sharded and numbers.is_sharded and data.axis == numbers.axis and numbers.axis < node.count_axes(1):
        need_fit(data, numbers)
        if node.type == "SegmentSum" or numbers.power:
            raise UnprovedError(MEET)
        return make_partial(data.power)
    if numbers.is_same and data.is_sharded and data.axis >= node.count_axes(1):
        return data._replace(axis=data.axis - node.count_axes(1) + 1)
    if numbers.is_same and data.kind in (PARTIAL, REPLICATED) and not data.is_mixed:
        return data._replace(elements=None)
    raise UnprovedError(MEET)


@register_rule("ScatterNd")
def scatter(node: Node) -> Placement:
    numbers, updates, sizes = node.inputs
    if numbers.kind == ROW_NUMBERS:
        return _put_back(node, numbers, updates, sizes)
    node.need_same(2)
    if numbers.is_sharded and updates.is_sharded and numbers.axis == updates.axis < node.count_axes(0) - 1:
        need_fit(numbers, updates)
        if numbers.power:
            raise UnprovedError(MEET)
        return make_partial(updates.power)
    if numbers.is_same and updates.is_same:
        return make_replicated()
    raise UnprovedError(MEET)


def _put_back(node: Node, numbers: Placement, updates: Placement, sizes: Placement) -> Placement:
    """Rows that a mask chose, among zeros in the place of the others."""
    rows, *rest = sizes.elements or [Element(None)]
    is_all = rows.power == -1 and rows.unit is not None and rows.unit == numbers.unit
    if not is_all or any(one.power != 0 for one in rest) or node.get_shape(0)[1:] != [1]:
        raise UnprovedError(MEET)
    chosen = updates.is_sharded and updates.axis == 0 and not updates.blocks
    if numbers.even or not chosen or updates.even or updates.chosen is None or updates.chosen != numbers.chosen:
        raise UnprovedError(MEET)
    return Placement(SHARDED, updates.power, unit=rows.unit)


@register_rule("Bincount", "DenseBincount")
def count_numbers(node: Node) -> Placement:
    numbers, _, weights = node.inputs
    if not (numbers.is_sharded or weights.is_sharded):
        return combine_figures(node)
    node.need_same(1)
    if not numbers.is_sharded or numbers.power:
        raise UnprovedError(MEET)
    power = 0
    if node.get_shape(2)[:1] != [0]:
        need_fit(numbers, weights)
        if weights.axis != numbers.axis:
            raise UnprovedError(MEET)
        power = weights.power
    is_binary = node.type == "DenseBincount" and node.read_attribute("binary_output")
    if node.type == "DenseBincount" and node.count_axes(0) == 2:
        if numbers.axis != 0:
            raise UnprovedError(MEET)
        return numbers._replace(power=0 if is_binary else power)
    if is_binary:
        raise UnprovedError(MEET)
    return make_partial(power)
