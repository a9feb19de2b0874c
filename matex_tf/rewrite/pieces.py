"""Ops on pieces: the entries of a flattened tensor, such as an optimizer's slot, are divided between the ranks.

Weight-update sharding (Xu et al., arXiv 2004.13336): a piece need not consist of rows as long as ops are elementwise.
Every other op takes whole tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf.lazy import tf
from matex_tf.rewrite.nodes import Decision, Node, NoRuleError, Value
from matex_tf.rewrite.placement import PARTIAL, WHOLE, Placement, cut
from matex_tf.rewrite.rules.entrywise import IDENTITIES, LINEAR, LINEAR_IN, NONLINEAR

_ENTRYWISE = {
    *f"{IDENTITIES} {LINEAR} {NONLINEAR}".split(),
    *LINEAR_IN,
    *"AddV2 Add Sub AddN AccumulateNV2 Mul RealDiv Div DivNoNan FloorDiv Maximum Minimum FloorMod".split(),
    *"Select SelectV2 Cast ZerosLike OnesLike".split(),
}
_SAME_ORDER = {"Reshape", "ExpandDims", "Squeeze", "EnsureShape"}
_REDUCED_BY = {"Sum": "sum", "Mean": "sum", "Max": "max", "Min": "min", "All": "min", "Any": "max", "L2Loss": "sum"}
ASSIGNS = {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"}


class PiecesRefusedError(Exception):
    """Ops take variables whole that ranks hold in pieces. refused: these ops, see `propagate.Reader`."""

    def __init__(self, refused: dict[int, Any]):
        super().__init__(refused)
        self.refused = refused


def place(node: Node) -> Decision:
    """The decision on an op that takes pieces, or the handle of a variable in pieces.

    Raises:
        NoRuleError: the op must take whole tensors.
    """
    first = node.get_placement(0)
    if first.is_held:
        if node.type == "ReadVariableOp":
            return node.decide([None], cut(first.cuts))
        if node.type in ASSIGNS and not node.get_placement(1).is_held:
            return node.decide([None, _find_need(node.inputs[1], first.cuts)])
        raise NoRuleError
    if any(placement.is_held for placement in node.placements):
        raise NoRuleError
    if node.type in _ENTRYWISE:
        return _compute_entries(node)
    if not first.is_piece:
        raise NoRuleError
    if node.type in _SAME_ORDER:
        shape = node.op.outputs[0].shape
        if shape.num_elements() != first.cuts[-1]:
            raise NoRuleError
        needs = [None, *[WHOLE] * (len(node.inputs) - 1)]
        return node.decide(needs, first, emit=lambda piece, *_: [piece])
    if node.type in ("Shape", "Size", "Rank"):
        return _describe(node)
    if node.type in _REDUCED_BY:
        return _reduce(node)
    raise NoRuleError


def find_shape(value: Value) -> tuple[int, ...] | None:
    """The shape of the script's tensor, if it is fixed."""
    shape = value.shape
    return None if shape is None or None in shape else tuple(size for size in shape if size is not None)


def count_entries(value: Value) -> int | None:
    shape = find_shape(value)
    return None if shape is None else math.prod(shape)


def list_cut(node: Node) -> list[Value]:
    """The inputs of an elementwise op that have as many entries as its result."""
    if node.type in _SAME_ORDER:
        return node.inputs[:1]
    return [
        value for value in node.inputs if node.type in _ENTRYWISE and find_shape(value) == find_shape(node.outputs[0])
    ]


def _find_need(value: Value, cuts: tuple[int, ...]) -> Placement | None:
    """The placement to which a value is brought for an op that takes a piece of it; None: unchanged."""
    piece = cut(cuts)
    if count_entries(value) != cuts[-1]:
        raise NoRuleError
    return None if value.placement.has_layout(piece) else piece


def _compute_entries(node: Node) -> Decision:
    piece = next(value for value in node.inputs if value.placement.is_piece)
    shape, cuts = find_shape(piece), piece.placement.cuts
    if find_shape(node.outputs[0]) != shape or len(node.outputs) > 1:
        raise NoRuleError
    needs: list[Placement | None] = []
    for value in node.inputs:
        if find_shape(value) == shape:
            needs.append(_find_need(value, cuts))
        elif value.shape == []:
            needs.append(WHOLE)
        else:
            raise NoRuleError
    return node.decide(needs, cut(cuts))


def _describe(node: Node) -> Decision:
    """Sizes that follow from the shape of the whole tensor."""
    shape = find_shape(node.inputs[0])
    if shape is None:
        raise NoRuleError
    dtype = node.outputs[0].dtype
    number = {"Shape": shape, "Size": math.prod(shape), "Rank": len(shape)}[node.type]
    constant = np.array(number, dtype.as_numpy_dtype)
    return Decision([None], [WHOLE], lambda _: [tf.constant(constant)], [constant])


def _reduce(node: Node) -> Decision:
    """A reduction over all entries: each rank reduces its piece, and a collective reduces the results."""
    shape, cuts = node.read_shape(0), node.get_placement(0).cuts
    keeps_axes = node.type != "L2Loss" and node.read_attribute("keep_dims", False)
    dtype = node.inputs[0].dtype
    if node.type == "L2Loss":
        return node.decide([None], Placement(PARTIAL, owned=True))
    if not all(node.read_named_axes(1, len(shape))) or (node.type == "Mean" and not dtype.is_floating):
        raise NoRuleError

    def emit(piece: Any, _: Any) -> Sequence[Any]:
        reduce = {"Sum": tf.reduce_sum, "Mean": tf.reduce_sum, "Max": tf.reduce_max, "Min": tf.reduce_min,
                  "All": tf.reduce_all, "Any": tf.reduce_any}[node.type]  # fmt: skip
        result = reduce(piece) / cuts[-1] if node.type == "Mean" else reduce(piece)
        return [tf.reshape(result, [1] * len(shape)) if keeps_axes else result]

    decision = node.decide([None, WHOLE], Placement(PARTIAL, reduction=_REDUCED_BY[node.type], owned=True), emit=emit)
    return decision._replace(shapes=[[1] * len(shape) if keeps_axes else []])
