"""The rules of ops: from the placements of an op's inputs to those of its outputs.

An op without a rule proves nothing.
"""

from matex_tf.analysis.rules import (
    arithmetic,
    arrays,
    control,
    neural,
    products,
    randoms,
    reductions,
    selections,
    shapes,
    slices,
    state,
)
from matex_tf.analysis.rules.registry import RULES, Node, UnprovedError

__all__ = [
    "RULES",
    "Node",
    "UnprovedError",
    "arithmetic",
    "arrays",
    "control",
    "neural",
    "products",
    "randoms",
    "reductions",
    "selections",
    "shapes",
    "slices",
    "state",
]
