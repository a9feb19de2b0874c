"""The rules: for each type of op, which placements its inputs need, and which its outputs have.

`deciding` calls `RULES[node.type](node)` for an op that takes rows, sums or sizes. A rule reads facts about the inputs,
such as constants and shapes, from the `Node`. It returns

- `node.decide(needs, *gives)`, a `Decision`. needs: the placements of the first inputs; None: as it is. Further inputs
  become whole. gives: the placements of the outputs; the last one is for further outputs, too. If the op itself would
  compute another result from a rank's tensors, `emit(copy, *inputs)` creates the ops of a rank in its place. `copy`
  (`emit.Copy`) knows the rank's slice of the batch: with `count` entries of the rank along an axis,
  `copy.find_first(count)` is the index of the first of them in the script's tensor, and `copy.find_total(count)` the
  length of the axis there;
- or an `Expansion`: other ops replace the op, and each gets its placements by its own rule.

`require` and `require_known` raise NoRuleError: the rule does not apply, and the op takes whole tensors, as an op
without a rule does. But an op that is linear in an input (`linear`, `moves` and `is_product` of `register_rule`) takes
a partial sum there unchanged, and its result is a partial sum. So a rule need only handle inputs with rows.

Terms: *rows* are the entries of a rank along the axis of a `Sharded` tensor. They are one *block*, the rank's rows of
the batch, or several: two concatenated batches are two blocks (`placement.Rows`). *Sizes* are the numbers of a shape
(`placement.Sizes`). If a number counts rows, it is 5 in the script, for example, and 3 on a rank with 3 rows.
"""

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
