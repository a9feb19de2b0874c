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

    linear: the inputs in which these ops are jointly linear, for any values of the other inputs.
    moves: the inputs whose entries these ops only move to other positions, which makes the ops linear in them.
    is_product: the ops are linear in each of their inputs.
    """

    def add(rule: _Rule) -> _Rule:
        add_rules(types, rule if moves is None else _move_or(moves, rule), moves if linear is None else linear)
        if is_product:
            _PRODUCTS.update(name for names in types for name in names.split())
        return rule

    return add


def _move_or(moves: int | slice, rule: Rule) -> Rule:
    def decide(node: Node) -> Decision | Expansion:
        indexes = _select(node, moves)
        if any(node.get_placement(index).kind == SIZES for index in indexes):
            return _move_sizes(node, indexes)
        return rule(node)

    return decide


def _move_sizes(node: Node, indexes: Sequence[int]) -> Decision:
    """Move sizes: each number keeps its meaning at its new position. The op itself, run on positions, tells where that
    is.
    """
    entries = [Size(None, 0)]  # the fill value of the op
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
        sums = [index for index, one in enumerate(node.placements) if one.is_partial]
        linear = sums[0] if len(sums) == 1 else None
    return node.decide_whole() if linear is None else keep_sum(node, linear)


def keep_sum(node: Node, linear: int | slice = 0) -> Decision:
    """For an op that is linear in these inputs: partial sums give a partial sum, and zeros give zeros."""
    if all(one.placement is WHOLE for one in node.inputs):
        return node.decide_whole()
    indexes, count = _select(node, linear), len(node.op.outputs)
    found = [node.get_placement(index) for index in indexes]
    needs: list[Placement | None] = [WHOLE] * len(node.inputs)
    if any(one.is_partial for one in found) and all(one.is_partial or one.zero for one in found):
        for index, one in zip(indexes, found):
            needs[index] = None if one.is_partial else SUM
        return Decision(needs, [SUM] * count)
    return Decision(needs, [ZERO if all(one.zero for one in found) else WHOLE] * count)
