"""Finds on which of four paths an op of the copy gets a value in the placement that it needs.

The number of rows n is an example of the path COUNTED. The script computes n as the size of a tensor. In the copy n is
a number of the rank's slice, and the ops that compute the script's n are left out (`Value.counts`).
"""

from __future__ import annotations

from matex_tf.rewrite.nodes import Node, Value
from matex_tf.rewrite.placement import Partial, Piece, Placement, Replicated, Sharded, Sizes

SAME, COUNTED, EXCHANGED, CONVERTED = "same", "counted", "exchanged", "converted"
"""The paths. The op gets:

    SAME         the value's own tensor
    COUNTED      numbers that follow from the rank's slice of the batch
    EXCHANGED    the result of a collective on the value
    CONVERTED    the result of ops, such as slicing, on the value or on the result of a collective
"""


def find_path(value: Value, need: Placement | None) -> str:
    """The path on which an op gets a value in the placement `need`; a need of None is the value's own placement."""
    placement = value.placement
    # Numbers that count rows, as the rank's own or as the script's.
    if value.counts is not None and (need is None or isinstance(need, (Sizes, Replicated))):
        return COUNTED
    # The placement fits.
    if need is None or placement.has_layout(need):
        return SAME
    # The op needs the rank's numbers of rows. The value has them, or has the script's, such as a constant shape.
    if isinstance(need, Sizes) and isinstance(placement, (Sizes, Replicated)):
        return COUNTED if isinstance(placement, Replicated) else SAME
    # A sum is needed as a sum.
    if isinstance(need, Partial) and isinstance(placement, Partial):
        return SAME
    # Ops make a term of a sum, rows or a piece of the whole value; or the script's sizes of a rank's sizes.
    if isinstance(need, (Partial, Sharded, Piece)) or isinstance(placement, Sizes):
        return CONVERTED
    return EXCHANGED if placement.needs_exchange(need) else SAME


def uses_tensor(value: Value, need: Placement | None) -> bool:
    """Whether the value's own tensor is used, possibly after a conversion or a collective."""
    path = find_path(value, need)
    # A conversion of numbers that count rows begins with numbers that follow from the slice, not with the tensor.
    is_count_converted = path == CONVERTED and value.counts is not None
    return path != COUNTED and not is_count_converted


def is_constant(node: Node) -> bool:
    """Whether the op is a constant, which is copied wherever it is used."""
    return node.type == "Const" and not node.controls and node.decision.emit is None and not node.is_reused
