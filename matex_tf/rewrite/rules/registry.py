"""The table of rules, by op type. A rule maps the placements of an op's inputs to a decision.

An op without a rule, or whose rule does not apply (`NoRuleError`), takes whole tensors; partial sums stay partial where
the op is linear in them. So a rule has to handle inputs with rows only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from matex_tf.rewrite.constants import evaluate
from matex_tf.rewrite.nodes import Decision, Expansion, Node, NoRuleError
from matex_tf.rewrite.placement import SIZES, SUM, WHOLE, ZERO, Placement, Size, make_sizes

Rule = Callable[[Node], Decision | Expansion]
_Rule = TypeVar("_Rule", bound=Rule)
RULES: dict[str, Rule] = {}
_LINEAR: dict[str, int | slice] = {}
_PRODUCTS: set[str] = set()


def register_rule(
    *types: str, linear: int | slice | None = None, moves: int | slice | None = None, is_product: bool = False
) -> Callable[[_Rule], _Rule]:
    """Register a rule for ops of these types. One text may list several types, separated by blanks.

    linear: the indices of the inputs in which these ops are jointly linear, for any values of the other inputs.
    moves: the indices of the inputs whose entries these ops only move to other positions. Then the ops are linear in
        them, and move sizes without a rule of their own.
    is_product: the ops are linear in each of their inputs.
    """

    def add(rule: _Rule) -> _Rule:
        add_rules(types, rule if moves is None else _move_or(moves, rule), moves if linear is None else linear)
        if is_product:
            _PRODUCTS.update(name for names in types for name in names.split())
        return rule

    return add


def _move_or(moves: int | slice, rule: Rule) -> Rule:
    """The rule that moves sizes, and applies `rule` to all other inputs."""

    def decide(node: Node) -> Decision | Expansion:
        indexes = _select(node, moves)
        if any(node.get_placement(index).kind == SIZES for index in indexes):
            return _move_sizes(node, indexes)
        return rule(node)

    return decide


def _move_sizes(node: Node, indexes: Sequence[int]) -> Decision:
    """Move sizes: each number keeps its meaning at its new position.

    The op itself shows the new positions: it is run on arrays of the old positions.
    """
    entries = [Size(None, 0)]  # position 0: the fill value of the op
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
    if len(outputs) != len(node.outputs) or any(positions.ndim > 1 for positions in outputs):
        raise NoRuleError
    needs = [None if placement.kind == SIZES else WHOLE for placement in node.placements]
    return Decision(needs, [make_sizes([entries[index] for index in positions.reshape(-1)]) for positions in outputs])


def _select(node: Node, which: int | slice) -> Sequence[int]:
    return range(len(node.inputs))[which] if isinstance(which, slice) else [which]


def add_rules(types: Iterable[str], rule: Rule, linear: int | slice | None = None) -> None:
    for names in types:
        for name in names.split():
            if name in RULES:
                raise KeyError(f"there are two rules for {name}")
            RULES[name] = rule
            if linear is not None:
                _LINEAR[name] = linear


def decide_without_rule(node: Node) -> Decision:
    """All inputs become whole, except for partial sums that the op keeps; so the outputs are the script's."""
    linear = _LINEAR.get(node.type)
    if node.type in _PRODUCTS:
        sums = [index for index, placement in enumerate(node.placements) if placement.is_partial]
        linear = sums[0] if len(sums) == 1 else None
    return node.decide_whole() if linear is None else keep_sum(node, linear)


def keep_sum(node: Node, linear: int | slice = 0) -> Decision:
    """For an op that is linear in these inputs: partial sums give a partial sum, and zeros give zeros."""
    if all(value.placement is WHOLE for value in node.inputs):
        return node.decide_whole()
    indexes, count = _select(node, linear), len(node.op.outputs)
    terms = [node.get_placement(index) for index in indexes]
    needs: list[Placement | None] = [WHOLE] * len(node.inputs)
    if any(term.is_partial for term in terms) and all(term.is_partial or term.is_zero for term in terms):
        for index, term in zip(indexes, terms):
            needs[index] = None if term.is_partial else SUM
        return Decision(needs, [SUM] * count)
    return Decision(needs, [ZERO if all(term.is_zero for term in terms) else WHOLE] * count)
