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
    all_known,
    partial,
    replicated,
    vector,
)
from matex_tf.analysis.rules.registry import MEET, WEIGHS, Node, UnprovedError, entries, figures, need_fit, rule


@rule("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "EuclideanNorm", shaped_alike=True)
def reduce(node: Node) -> Placement:
    one = node.inputs[0]
    rounds = node.type == "Mean" and not (node.tensors[0].dtype.is_floating or node.tensors[0].dtype.is_complex)
    is_linear = node.type in ("Sum", "Mean") and not rounds
    if one.elements is not None and node.rank(0) == 1 and node.type in ("Prod", "Sum"):
        return _of_elements(node, one) if node.constant(1).size else one
    if not one.is_sharded:
        if one.kind in (PARTIAL, REPLICATED) and not one.is_mixed and is_linear:
            node.need_same(1)
            return one._replace(elements=None)
        return figures(node)
    rank = node.rank(0)
    axes = node.axes(1, rank)
    if one.axis not in axes:
        if one.power and not is_linear:
            raise UnprovedError(WEIGHS)
        kept = node.attr("keep_dims")
        return one._replace(axis=one.axis if kept else one.axis - sum(axis < one.axis for axis in axes))
    if node.type == "Sum":
        return partial(one.power)._replace(zero=one.zero)
    if node.type == "Mean" and one.even and is_linear:
        return partial(one.power + 1)
    if node.type == "Mean" and not one.even:
        raise UnprovedError("it is a mean over rows that the data choose, of which each slice has another number")
    raise UnprovedError(MEET)


def _of_elements(node: Node, one: Placement) -> Placement:
    """The product or sum of a vector of whole numbers."""
    found = entries(one)
    powers = all_known(element.power for element in found)
    if node.type == "Sum":
        power = found[0].power if len({element.power for element in found}) == 1 else None if found else 0
    else:
        power = None if powers is None else sum(powers)
    values = all_known(element.value if element.power == 0 else None for element in found)
    value = None if power != 0 or values is None else math.prod(values) if node.type == "Prod" else sum(values)
    unit = _unit(node.type, found) if power == -1 else None
    return vector([Element(power, value, unit)])


def _unit(kind: str, found: tuple[Element, ...]) -> int | None:
    """How many times the number of rows such a product or sum is."""
    counts = all_known(one.unit if one.power == -1 else one.value for one in found)
    if counts is None:
        return None
    return math.prod(counts) if kind == "Prod" else sum(counts)


@rule("L2Loss")
def half_the_squares(node: Node) -> Placement:
    one = node.inputs[0]
    if one.is_sharded:
        if one.power:
            raise UnprovedError(WEIGHS)
        return partial(0)
    return figures(node)


@rule("ArgMax", "ArgMin")
def along_an_axis(node: Node) -> Placement:
    one = node.inputs[0]
    if not one.is_sharded:
        return figures(node)
    axes = node.axes(1, node.rank(0))
    if one.axis in axes or one.power:
        raise UnprovedError(MEET)
    return one._replace(axis=one.axis - sum(axis < one.axis for axis in axes))


@rule("UnsortedSegmentSum", "SegmentSum")
def sums_by_number(node: Node) -> Placement:
    """Sums of rows by a number that each of them has: of the data, so that each rank has some of each."""
    data, numbers = node.inputs[:2]
    node.need_same(*range(2, len(node.inputs)))
    if data.is_sharded and numbers.is_sharded and data.axis == numbers.axis and numbers.axis < node.rank(1):
        need_fit(data, numbers)
        if node.type == "SegmentSum" or numbers.power:
            raise UnprovedError(MEET)
        return partial(data.power)
    if numbers.is_same and data.is_sharded and data.axis >= node.rank(1):
        return data._replace(axis=data.axis - node.rank(1) + 1)
    if numbers.is_same and data.kind in (PARTIAL, REPLICATED) and not data.is_mixed:
        return data._replace(elements=None)
    raise UnprovedError(MEET)


@rule("ScatterNd")
def scatter(node: Node) -> Placement:
    numbers, updates, sizes = node.inputs
    if numbers.kind == ROW_NUMBERS:
        return _put_back(node, numbers, updates, sizes)
    node.need_same(2)
    if numbers.is_sharded and updates.is_sharded and numbers.axis == updates.axis < node.rank(0) - 1:
        need_fit(numbers, updates)
        if numbers.power:
            raise UnprovedError(MEET)
        return partial(updates.power)
    if numbers.is_same and updates.is_same:
        return replicated()
    raise UnprovedError(MEET)


def _put_back(node: Node, numbers: Placement, updates: Placement, sizes: Placement) -> Placement:
    """Rows that a mask chose, among zeros in the place of the others."""
    rows, *rest = sizes.elements or [Element(None)]
    is_all = rows.power == -1 and rows.unit is not None and rows.unit == numbers.unit
    if not is_all or any(one.power != 0 for one in rest) or node.shape(0)[1:] != [1]:
        raise UnprovedError(MEET)
    chosen = updates.is_sharded and updates.axis == 0 and not updates.blocks
    if numbers.even or not chosen or updates.even or updates.chosen is None or updates.chosen != numbers.chosen:
        raise UnprovedError(MEET)
    return Placement(SHARDED, updates.power, unit=rows.unit)


@rule("Bincount", "DenseBincount")
def count_numbers(node: Node) -> Placement:
    numbers, _, weights = node.inputs
    if not (numbers.is_sharded or weights.is_sharded):
        return figures(node)
    node.need_same(1)
    if not numbers.is_sharded or numbers.power:
        raise UnprovedError(MEET)
    power = 0
    if node.shape(2)[:1] != [0]:
        need_fit(numbers, weights)
        if weights.axis != numbers.axis:
            raise UnprovedError(MEET)
        power = weights.power
    is_binary = node.type == "DenseBincount" and node.attr("binary_output")
    if node.type == "DenseBincount" and node.rank(0) == 2:
        if numbers.axis != 0:
            raise UnprovedError(MEET)
        return numbers._replace(power=0 if is_binary else power)
    if is_binary:
        raise UnprovedError(MEET)
    return partial(power)
