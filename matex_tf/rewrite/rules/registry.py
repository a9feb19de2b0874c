"""The table of rules by op type. A rule says which placements an op takes its inputs in, and what it then gives.

An op without a rule, or one whose rule does not hold for its inputs (`NoRuleError`), takes whole tensors. But for sums
where the op is linear in them: so a rule tells of inputs with rows, and sizes, alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from matex_tf.rewrite.nodes import Decision, Expansion, Node
from matex_tf.rewrite.placement import SUM, WHOLE, ZERO, Placement

Rule = Callable[[Node], Decision | Expansion]
_Rule = TypeVar("_Rule", bound=Rule)
RULES: dict[str, Rule] = {}
_LINEAR: dict[str, int | slice] = {}
_PRODUCTS: set[str] = set()


def register_rule(*types: str, linear: int | slice | None = None, is_product: bool = False) -> Callable[[_Rule], _Rule]:
    """Use the function for ops of these types; one text may name several, with blanks between.

    linear: the numbers of the inputs in which these ops are linear together, whatever the others are.
    is_product: whether they are linear in each of their inputs.
    """

    def add(rule: _Rule) -> _Rule:
        add_rules(types, rule, linear, is_product)
        return rule

    return add


def add_rules(types: Iterable[str], rule: Rule, linear: int | slice | None = None, is_product: bool = False) -> None:
    for names in types:
        for name in names.split():
            if name in RULES:
                raise KeyError(f"there are two rules for {name}")
            RULES[name] = rule
            if linear is not None:
                _LINEAR[name] = linear
            if is_product:
                _PRODUCTS.add(name)


def decide_without_rule(node: Node) -> Decision:
    """All inputs are whole, but for sums that the op keeps, and so the outputs are those of the script."""
    sums = [index for index, one in enumerate(node.placements) if one.is_partial]
    if node.type in _PRODUCTS and len(sums) == 1:
        return keep_sum(node, sums[0])
    linear = _LINEAR.get(node.type)
    return node.decide_whole() if linear is None else keep_sum(node, linear)


def keep_sum(node: Node, linear: int | slice = 0) -> Decision:
    """Of an op that is linear in inputs: of sums it makes a sum, and of 0 it makes 0."""
    every, count = range(len(node.inputs)), len(node.op.outputs)
    indexes = every[linear] if isinstance(linear, slice) else [linear]
    found = [node.get_placement(index) for index in indexes]
    needs: list[Placement | None] = [WHOLE for _ in every]
    if any(one.is_partial for one in found) and all(one.is_partial or one.zero for one in found):
        for index, one in zip(indexes, found):
            needs[index] = None if one.is_partial else SUM
        return Decision(needs, [SUM] * count)
    return Decision(needs, [ZERO if all(one.zero for one in found) else WHOLE] * count)
