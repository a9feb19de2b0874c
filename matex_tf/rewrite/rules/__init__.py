"""What each op makes of the placements of its inputs. An op without a rule takes whole tensors, and gives them."""

from matex_tf.rewrite.rules import (  # noqa: F401 - each adds its rules to the table
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
