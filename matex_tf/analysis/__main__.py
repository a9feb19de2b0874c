"""docs/placements.md, which this prints: the placements, how a step is proved with them, and the ops with rules."""

from __future__ import annotations

from matex_tf.analysis import rules

_HEAD = """\
# Placements

When may ranks share a step? Only where it is proved that the step then does what it does alone. Each rank runs the
step's ops on its slice of the batch. A placement says how the ranks' values of a tensor make up the value that the
script alone has of it.

![A step: rows are sharded, the mean loss and the gradient are partial](figures/placements.svg)

T is the value alone, T_r that of rank r, and w_r the rank's share of the rows of the batch.

| placement | meaning | such as |
|---|---|---|
| replicated | T = w_r^k T_r on every rank | weights, constants; with k = -1 the number of rows |
| sharded | T = the ranks' w_r^k T_r, one after the other along an axis | the batch, activations, losses of each row |
| partial | T = the sum over the ranks of w_r^k T_r | a sum over the rows (k = 0), a mean over them (k = 1) |
| derived | T is computed again from whole values without rows | the root of a mean |
| row numbers | T_r numbers rows within the slice | `tf.range(rows)`, `tf.where(mask)` |
| unknown | none of these is proved | rows that meet rows: a sort, a softmax over the batch |

The power k is 0 for most tensors. The number of rows is replicated with k = -1, because the slice has n_r = w_r n of
them. Dividing by it adds 1 to k, multiplying takes 1 away. So a sum over rows that is divided by their number is
partial with k = 1: a mean. No number is ever compared with a row count: a batch of 64 may have 64 columns.

More is kept of some tensors:

- Of a shape, each entry has its own power and value. Only so does `tf.reshape(x, [tf.shape(x)[0], -1])` keep rows
  apart.
- Of rows that a mask chose, the mask: only rows of the same mask may meet.
- Of several batches joined along the rows, the sizes of the blocks: a rank has its part of each.
- Whether a tensor is 0 everywhere: it then has any power.

## How a step is proved

1. The batch's tensors are sharded along their first axis.
2. The rule of an op gives the placements of its outputs from those of its inputs. Branches must agree, and so must the
   turns of a loop. Functions are followed into.
3. Without a rule, an op without effects whose inputs have no rows gives a derived value. Any other gives unknown.
4. The step is sharded if all that it leaves behind is the same on every rank, or can be made so. Partial values are
   summed, rows are gathered, derived values are computed again.
5. If anything is unknown, every rank computes the whole batch. One line names the op and the line of the script.

Rules may be too careful, but never wrong. `tests/analysis` runs each of them, and random graphs of them, on whole
batches and on slices, and compares every tensor.

## Ops with rules
"""


def format_page() -> str:
    """The page."""
    lines = [_HEAD, "| family | types |", "|---|---|"]
    families: dict[str, list[str]] = {}
    for kind, function in rules.RULES.items():
        families.setdefault(function.__module__.rpartition(".")[2], []).append(kind)
    for family, kinds in sorted(families.items()):
        summary = (getattr(rules, family).__doc__ or "").strip().splitlines()[0].rstrip(".")
        lines.append(f"| {summary} | {' '.join(f'`{kind}`' for kind in sorted(kinds))} |")
    return "\n".join([*lines, "", "This page is written by `python -m matex_tf.analysis`.", ""])


if __name__ == "__main__":
    print(format_page(), end="")
