"""Rules for pieces: the entries of a flattened tensor, such as an optimizer's slot, are divided between the ranks.

Two ranks may hold entries 0-7 and 8-14 of a 5x3 slot; its *cuts* are (0, 8, 15). Elementwise ops compute a piece from
pieces. Reductions over all entries reduce each piece, and a collective reduces the results. Every other op takes whole
tensors. This is weight-update sharding (Xu et al., arXiv 2004.13336).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from matex_tf.lazy import tf
from matex_tf.rewrite.nodes import Decision, Node, NoRuleError, Value, require, require_known
from matex_tf.rewrite.placement import WHOLE, Partial, Piece, PieceHandle, Placement
from matex_tf.rewrite.rules.entrywise import IDENTITIES, TYPES

_ENTRYWISE = TYPES.union(f"{IDENTITIES} FloorDiv Maximum Minimum FloorMod Select SelectV2 ZerosLike OnesLike".split())
_SAME_ORDER = {"Reshape", "ExpandDims", "Squeeze", "EnsureShape"}
"""Ops that keep the order of the flattened entries, so that pieces stay as they are."""
_COMBINED_BY = {"Sum": "sum", "Mean": "sum", "Max": "max", "Min": "min", "All": "min", "Any": "max", "L2Loss": "sum"}
"""For each reduction, the collective that combines the ranks' results."""
ASSIGNS = {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"}


class PiecesRefusedError(Exception):
    """Ops take variables whole that ranks would hold in pieces.

    refused: by the number of such a variable, an op that takes it whole (`propagate.Reader`).
    """

    def __init__(self, refused: dict[int, Any]):
        super().__init__(refused)
        self.refused = refused


def place(node: Node) -> Decision:
    """The decision on an op that takes pieces, or the handle of a variable of which each rank holds a piece.

    Raises NoRuleError, as `require` does, if the op must take whole tensors.
    """
    # Input 0 is the handle of a variable in pieces: a read returns a piece, an assignment takes one.
    first_placement = node.get_placement(0)
    if isinstance(first_placement, PieceHandle):
        if node.type == "ReadVariableOp":
            return node.decide([None], Piece(first_placement.cuts))
        if node.type in ASSIGNS and not isinstance(node.get_placement(1), PieceHandle):
            return node.decide([None, _find_need(node.inputs[1], first_placement.cuts)])
        raise NoRuleError  # the op takes the variable whole
    # Otherwise some inputs are pieces. A handle among the other inputs belongs to an op that takes the variable whole.
    require(not any(isinstance(placement, PieceHandle) for placement in node.placements))
    if node.type in _ENTRYWISE:
        return _compute_entries(node)
    piece = node.require_kind(0, Piece)
    if node.type in _SAME_ORDER:
        # The last cut is the number of entries of the whole tensor.
        require(node.op.outputs[0].shape.num_elements() == piece.cuts[-1])
        return node.decide([None], piece, emit=lambda _, entries, *shape: [entries])
    if node.type in ("Shape", "Size", "Rank"):
        return _describe(node)
    if node.type in _COMBINED_BY:
        return _reduce(node, piece.cuts[-1])
    raise NoRuleError


def _find_fixed_shape(value: Value) -> tuple[int, ...] | None:
    """The shape of the script's tensor; None if it is not fixed, or if ranks have rows of the tensor."""
    shape = value.shape
    return None if shape is None or None in shape else tuple(size for size in shape if size is not None)


def count_entries(value: Value) -> int | None:
    """The number of entries of the script's tensor; None where `_find_fixed_shape` is None."""
    shape = _find_fixed_shape(value)
    return None if shape is None else math.prod(shape)


def list_matching_inputs(node: Node) -> list[Value]:
    """The inputs with as many entries as the result, of an op in `_ENTRYWISE` or `_SAME_ORDER`; empty for other ops.

    To compute a piece of the result, a rank needs the same piece of each of these inputs (`whole_sums`).
    """
    if node.type in _SAME_ORDER:
        return node.inputs[:1]
    if node.type not in _ENTRYWISE:
        return []
    return [value for value in node.inputs if _find_fixed_shape(value) == _find_fixed_shape(node.outputs[0])]


def _find_need(value: Value, cuts: tuple[int, ...]) -> Placement | None:
    """The placement to which a value is brought for an op that takes a piece of it; None: the value is this piece.

    Raises NoRuleError if the value has another number of entries than the pieces.
    """
    require(count_entries(value) == cuts[-1])
    return None if value.placement.has_layout(Piece(cuts)) else Piece(cuts)


def _compute_entries(node: Node) -> Decision:
    """An elementwise op on pieces, other tensors of their shape, and scalars."""
    shape, cuts = next(
        (_find_fixed_shape(value), value.placement.cuts) for value in node.inputs if isinstance(value.placement, Piece)
    )
    require(len(node.outputs) == 1 and _find_fixed_shape(node.outputs[0]) == shape)
    require(all(_find_fixed_shape(value) in (shape, ()) for value in node.inputs))
    needs = [_find_need(value, cuts) if _find_fixed_shape(value) == shape else WHOLE for value in node.inputs]
    return node.decide(needs, Piece(cuts))


def _describe(node: Node) -> Decision:
    """Sizes that follow from the shape of the whole tensor."""
    shape = require_known(_find_fixed_shape(node.inputs[0]))
    numbers = {"Shape": shape, "Size": math.prod(shape), "Rank": len(shape)}[node.type]
    constant = np.array(numbers, node.outputs[0].dtype.as_numpy_dtype)
    return Decision([None], [WHOLE], lambda *_: [tf.constant(constant)], [constant])


def _reduce(node: Node, entry_count: int) -> Decision:
    """A reduction over all entries: each rank reduces its piece, and a collective combines the results (`owned`)."""
    if node.type == "L2Loss":
        return node.decide([None], Partial(owned=True))
    axis_count = node.count_axes(0)
    require(all(node.read_named_axes(1, axis_count)) and (node.type != "Mean" or node.inputs[0].dtype.is_floating))
    new_shape = [1] * axis_count if node.read_attribute("keep_dims", False) else []
    reduction = "sum" if node.type == "Mean" else node.type.lower()

    def emit(_: Any, piece: Any, axes: Any) -> list[Any]:
        result = getattr(tf, f"reduce_{reduction}")(piece)
        return [tf.reshape(result / entry_count if node.type == "Mean" else result, new_shape)]

    partial = Partial(_COMBINED_BY[node.type], owned=True)
    return node.decide([None], partial, emit=emit, shapes=[new_shape])
