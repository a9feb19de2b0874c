"""docs/placements.md: what the placements are, how a step is proved with them, and the ops that have a rule."""

from __future__ import annotations

from matex_tf.analysis import rules

_HEAD = """\
# Placements

Ranks may share a traced step only where it is proved that the step does what it does alone. Each rank runs the step's
ops on its slice of the batch. A placement says how the values that the ranks have of a tensor make up the value that
the script alone has of it. Below, T is the value alone, T_r that of rank r, and w_r the rank's share of the rows of the
batch.

| placement | meaning | such as |
|---|---|---|
| replicated | T = w_r^k T_r on every rank | weights, constants; with k = -1 the number of rows |
| sharded | T = the ranks' w_r^k T_r, one after the other along an axis | the batch, activations, losses of each row |
| partial | T = the sum over the ranks of w_r^k T_r | a sum over the rows (k = 0), a mean over them (k = 1) |
| derived | T is computed anew of the whole values of the op's inputs, which have no rows | the root of a mean |
| row numbers | T_r numbers rows within the slice | `tf.range(rows)`, `tf.where(mask)` |
| unknown | none of these is proved | rows that meet rows: a sort, a softmax over the batch |

The power k is 0 for most tensors. All rows are n_r / w_r, n_r being those of the slice: the number of rows is
replicated with k = -1. What is divided by it gains 1, what is multiplied by it loses 1. So a sum over rows that is
divided by their number is partial with k = 1, a mean. No number is ever compared with a row count: a batch of 64 may
well have 64 columns.

More is kept of some tensors:

- Of a vector of whole numbers, as a shape is one, each entry has its own power, and its value or how many times the
  number of rows it is. Only so is `tf.reshape(x, [tf.shape(x)[0], -1])` known to keep rows apart.
- Of rows that a mask chose, the mask: only rows that the same mask chose may meet.
- Of several batches put below one another, the sizes of these blocks: a rank has its part of each.
- Whether a tensor is 0 everywhere: that has any power.

## How a step is proved

1. The batch's tensors are declared sharded along their first axis.
2. The placement of a tensor follows from those of the inputs of its op, by the rule of the op's type. Branches must
   agree, and so must the turns of a loop. Functions are followed into.
3. An op without a rule makes the same of the same. If all that it is given are figures without rows, and it has no
   effect, what it makes is derived. Else it is unknown.
4. The step may be shared if all that it leaves behind is the same on every rank, or is made so: by adding up partial
   values, gathering rows, and computing derived values anew.
5. Whatever is unknown is named with the line of the script that made it, and the step runs whole on every rank.

Rules may be too careful, but never wrong. `tests/analysis` runs each of them, and random graphs of them, on whole
batches and on slices, and compares every tensor.

## Ops with rules
"""


def reference() -> str:
    """The page."""
    lines = [_HEAD, "| family | types |", "|---|---|"]
    families: dict[str, list[str]] = {}
    for kind, function in rules.RULES.items():
        families.setdefault(function.__module__.rpartition(".")[2], []).append(kind)
    for family, kinds in sorted(families.items()):
        summary = (getattr(rules, family).__doc__ or "").strip().splitlines()[0].rstrip(".")
        lines.append(f"| {summary} | {' '.join(f'`{kind}`' for kind in sorted(kinds))} |")
    return "\n".join([*lines, "", "This page is written by `python -m matex_tf.analysis`.", ""])
