"""The rules: for each type of op, the placements of inputs and outputs. An op without a rule takes whole tensors."""

from matex_tf.rewrite.rules import (  # noqa: F401 - each module adds its rules to the table
    arrays,
    entrywise,
    layers,
    lists,
    products,
    ragged,
    randoms,
    reductions,
    selections,
    shapes,
    sizes,
    slices,
)
from matex_tf.rewrite.rules.registry import RULES

__all__ = ["RULES"]
