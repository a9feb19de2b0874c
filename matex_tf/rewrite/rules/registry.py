"""The table of rules by op type. A rule says which placements an op takes its inputs in, and what it then gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from matex_tf.rewrite.nodes import Decision, Expansion, Node

Rule = Callable[[Node], Decision | Expansion]
_Rule = TypeVar("_Rule", bound=Rule)
RULES: dict[str, Rule] = {}


def register_rule(*types: str) -> Callable[[_Rule], _Rule]:
    """Use the function for ops of these types; one text may name several, with blanks between."""

    def add(rule: _Rule) -> _Rule:
        add_rules(types, rule)
        return rule

    return add


def add_rules(types: Iterable[str], rule: Rule) -> None:
    for names in types:
        for name in names.split():
            if name in RULES:
                raise KeyError(f"there are two rules for {name}")
            RULES[name] = rule
