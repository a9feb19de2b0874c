"""The table of rules by op type. A rule says which placements an op takes its inputs in, and what it then gives.

An op without a rule, or with one that does not hold for its inputs (`NoRuleError`), takes whole tensors, but for sums
where it is linear in them. So a rule tells of inputs with rows alone.
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
    """Use the function for ops of these types; one text may name several, with blanks between.

    linear: the numbers of the inputs in which these ops are linear together, whatever the others are.
    moves: of inputs whose entries they only move to other places, so that they are linear in them.
    is_product: whether they are linear in each of their inputs.
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
    """Of numbers that count rows each keeps what it counts, at its place, which the op tells, run on the places."""
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
    """All inputs are whole, but for sums that the op keeps, and so the outputs are those of the script."""
    linear = _LINEAR.get(node.type)
    if node.type in _PRODUCTS:
        sums = [index for index, one in enumerate(node.placements) if one.is_partial]
        linear = sums[0] if len(sums) == 1 else None
    return node.decide_whole() if linear is None else keep_sum(node, linear)


def keep_sum(node: Node, linear: int | slice = 0) -> Decision:
    """Of an op that is linear in inputs: of sums it makes a sum, and of 0 it makes 0."""
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
