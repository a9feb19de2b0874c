"""The table of rules, by op type, and what is common to them: the decision without a rule, and the moves of sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from matex_tf.rewrite.constants import evaluate
from matex_tf.rewrite.nodes import Decision, Expansion, Node, require
from matex_tf.rewrite.placement import SUM, WHOLE, ZEROS, Placement, Size, Sizes, Zeros

Rule = Callable[[Node], Decision | Expansion]
_Rule = TypeVar("_Rule", bound=Rule)
RULES: dict[str, Rule] = {}
_LINEAR: dict[str, int | slice] = {}
_PRODUCTS: set[str] = set()
"""By op type: the rules, and the arguments `linear` (or `moves`) and `is_product` of `register_rule`."""


def register_rule(
    types: str, linear: int | slice | None = None, moves: int | slice | None = None, is_product: bool = False
) -> Callable[[_Rule], _Rule]:
    """Register a rule for ops of these types, which are separated by blanks.

    linear: the indices of the inputs in which these ops are jointly linear, for any values of the other inputs.
    moves: the indices of the inputs whose entries these ops only move to other positions. Then the ops are linear in
        them, and move sizes without a rule of their own.
    is_product: the ops are linear in each of their inputs.
    """

    def register(rule: _Rule) -> _Rule:
        def move_or_decide(node: Node) -> Decision | Expansion:
            moved_inputs = [] if moves is None else _select(node, moves)
            is_moved = any(isinstance(node.get_placement(index), Sizes) for index in moved_inputs)
            return move_sizes(node, moved_inputs) if is_moved else rule(node)

        linear_inputs = moves if linear is None else linear
        for name in types.split():
            if name in RULES:
                raise KeyError(f"there are two rules for {name}")
            RULES[name] = rule if moves is None else move_or_decide
            if linear_inputs is not None:
                _LINEAR[name] = linear_inputs
            if is_product:
                _PRODUCTS.add(name)
        return rule

    return register


def keep_sizes(node: Node) -> list[Placement | None]:
    """Needs that leave inputs of the placement `Sizes` unchanged. Raises NoRuleError if no input has that placement."""
    require(any(isinstance(placement, Sizes) for placement in node.placements))
    return [None if isinstance(placement, Sizes) else WHOLE for placement in node.placements]


def move_sizes(node: Node, indexes: Sequence[int]) -> Decision:
    """Move sizes: each number keeps its meaning at its new position.

    The op itself shows the new positions: it is run on arrays of the old positions. If `Pack` makes the vector [1, 2]
    of the positions 1 and 2, it makes the shape [n, 3] of the sizes n and 3.
    """
    entries = [Size(None, 0)]  # position 0 stands for the number 0, with which an op may fill its result
    inputs: list[np.ndarray] = []
    for index, value in enumerate(node.inputs):
        if index not in indexes:
            inputs.append(node.read_constant(index))
            continue
        sizes = node.read_sizes(index)
        positions = np.arange(len(entries), len(entries) + len(sizes))
        inputs.append(positions if value.tensor.shape.rank else positions.reshape([]))
        entries += sizes
    outputs = evaluate(node, inputs)
    require(len(outputs) == len(node.outputs) and all(positions.ndim <= 1 for positions in outputs))
    gives = [Sizes(tuple(entries[index] for index in positions.reshape(-1))) for positions in outputs]
    return node.decide(keep_sizes(node), *gives)


def _select(node: Node, selection: int | slice) -> Sequence[int]:
    """The indices of the inputs that `selection` names."""
    return range(len(node.inputs))[selection] if isinstance(selection, slice) else [selection]


def decide_without_rule(node: Node) -> Decision:
    """The decision that all inputs become whole, except for partial sums in which the op is linear."""
    linear_inputs = _LINEAR.get(node.type)
    if node.type in _PRODUCTS:
        sum_indexes = [index for index, placement in enumerate(node.placements) if placement.is_row_sum]
        linear_inputs = sum_indexes[0] if len(sum_indexes) == 1 else None
    return node.decide_whole() if linear_inputs is None else keep_sum(node, linear_inputs)


def keep_sum(node: Node, linear: int | slice = 0) -> Decision:
    """For an op that is linear in these inputs: partial sums give a partial sum, and zeros give zeros.

    A whole tensor of zeros may stand among the partial sums: it needs the placement SUM, as a sum of zeros.
    """
    if all(value.placement is WHOLE for value in node.inputs):  # a shortcut for the usual case
        return node.decide_whole()
    indexes = _select(node, linear)
    terms = [node.get_placement(index) for index in indexes]
    if any(term.is_row_sum for term in terms) and all(term.is_row_sum or isinstance(term, Zeros) for term in terms):
        needs: list[Placement | None] = [WHOLE] * len(node.inputs)
        for index, term in zip(indexes, terms):
            needs[index] = None if term.is_row_sum else SUM
        return node.decide(needs, SUM)
    return node.decide([], ZEROS if all(isinstance(term, Zeros) for term in terms) else WHOLE)
