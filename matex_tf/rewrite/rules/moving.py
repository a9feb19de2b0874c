"""Ops that move entries to other places: of numbers that count rows, each keeps what it counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from matex_tf.rewrite.constants import evaluate
from matex_tf.rewrite.nodes import Decision, Node, NoRuleError
from matex_tf.rewrite.placement import SIZES, WHOLE, Size, make_sizes


def move_sizes(node: Node, indexes: Sequence[int]) -> Decision:
    """The places of the entries of these inputs, which the op itself tells, run on the numbers of the entries."""
    entries = [Size(None, 0)]  # with which an op fills up
    given: list[np.ndarray] = []
    for index, value in enumerate(node.inputs):
        if index not in indexes:
            given.append(node.read_constant(index))
            continue
        sizes = node.read_sizes(index)
        numbers = np.arange(len(entries), len(entries) + len(sizes))
        given.append(numbers if value.tensor.shape.rank else numbers.reshape([]))
        entries += sizes
    made = evaluate(node, given)
    if len(made) != len(node.outputs) or any(one.ndim > 1 for one in made):
        raise NoRuleError
    needs = [None if one.kind == SIZES else WHOLE for one in node.placements]
    return Decision(needs, [make_sizes([entries[at] for at in one.reshape(-1)]) for one in made])
