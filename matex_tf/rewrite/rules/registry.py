"""The table of rules by op type. A rule says which placements an op takes its inputs in, and what it then gives.

An op without a rule, or one whose rule does not hold for its inputs (`NoRuleError`), takes whole tensors. But for a sum
where the op is linear in it: so a rule tells of inputs with rows, and sizes, alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from matex_tf.rewrite.nodes import Decision, Expansion, Node
from matex_tf.rewrite.placement import SUM, WHOLE, ZERO, Placement

Rule = Callable[[Node], Decision | Expansion]
_Rule = TypeVar("_Rule", bound=Rule)
RULES: dict[str, Rule] = {}
_LINEAR: dict[str, int] = {}


def register_rule(*types: str, linear: int | None = None) -> Callable[[_Rule], _Rule]:
    """Use the function for ops of these types; one text may name several, with blanks between.

    linear: the number of the input in which these ops are linear, whatever the others are.
    """

    def add(rule: _Rule) -> _Rule:
        add_rules(types, rule, linear)
        return rule

    return add


def add_rules(types: Iterable[str], rule: Rule, linear: int | None = None) -> None:
    for names in types:
        for name in names.split():
            if name in RULES:
                raise KeyError(f"there are two rules for {name}")
            RULES[name] = rule
            if linear is not None:
                _LINEAR[name] = linear


def decide_without_rule(node: Node) -> Decision:
    """All inputs are whole, but for a sum that the op keeps, and so the outputs are those of the script."""
    at = _LINEAR.get(node.type)
    return node.decide_whole() if at is None else keep_sum(node, at)


def keep_sum(node: Node, at: int = 0) -> Decision:
    """Of an op that is linear in an input: a sum stays one, and so does 0."""
    one, count = node.get_placement(at), len(node.op.outputs)
    needs: list[Placement | None] = [WHOLE] * len(node.inputs)
    if one.is_partial:
        needs[at] = None
        return Decision(needs, [SUM] * count)
    return Decision(needs, [ZERO if one.zero else WHOLE] * count)
