"""Partial sums that ops need whole, or in pieces: each is converted once, where it arises."""

from __future__ import annotations

from typing import Any

from matex_tf.rewrite import pieces
from matex_tf.rewrite.nodes import Node, Value
from matex_tf.rewrite.placement import PARTIAL, WHOLE, Placement, cut
from matex_tf.rewrite.programs import Program

Key = tuple[Any, ...]


WHOLE_SUM = "Whole"
"""The type of the stand-in op that converts a sum."""


def find_needed_sums(program: Program) -> dict[Key, Placement]:
    """The placements to which sums are converted where they arise, by the keys of the sums.

    A sum becomes whole if one op needs it whole and another takes it unchanged. A sum becomes pieces if all that
    depends on it, by elementwise ops, needs a piece.
    """
    needed: set[Key] = set()
    kept: set[Key] = set()
    _note_needs(program, needed, kept)
    found = dict.fromkeys(needed & kept, WHOLE)
    cuts: dict[Key, tuple[int, ...]] = {}
    if any(one.placement.cuts for one in program.inputs):  # values that pieces are made of
        _find_cuts(program, {}, needed, cuts)
    return found | {key: cut(one) for key, one in cuts.items()}


def _note_needs(program: Program, needed: set[Key], kept: set[Key]) -> None:
    for value, need, node in program.iterate_needs([WHOLE] * len(program.outputs)):
        if value.placement.kind == PARTIAL and (node is None or node.type != WHOLE_SUM):
            (kept if need is None else needed).add(value.key)
    for node in program.nodes:
        for body in node.bodies:
            _note_needs(body, needed, kept)


def _find_cuts(
    program: Program, wanted: dict[int, tuple[int, ...]], needed: set[Key], found: dict[Key, tuple[int, ...]]
) -> None:
    """Go back from pieces to the sums that they are made of.

    wanted: the cuts of the pieces that some op needs, directly or later, by the ids of values.
    needed: the keys of sums that some op does not take unchanged.
    """

    def want(value: Value, cuts: tuple[int, ...]) -> None:
        if pieces.count_entries(value) != cuts[-1]:
            return
        wanted.setdefault(id(value), cuts)
        if value.placement.is_partial:
            found.setdefault(value.key, cuts)

    for node in reversed(program.nodes):
        for body in node.bodies:
            _find_cuts(body, wanted, needed, found)
            for within, value in zip(body.inputs, node.inputs[1:] if node.type in _BRANCHES else ()):
                if id(within) in wanted and not value.placement.is_held:
                    want(value, wanted[id(within)])
        for value, need in zip(node.inputs, node.decision.needs):
            if need is not None and need.is_piece:
                want(value, need.cuts)
        if len(node.outputs) == 1 and id(node.outputs[0]) in wanted:
            for value in _list_sources(node):
                if node.type == WHOLE_SUM or not value.placement.is_partial or value.key in needed:
                    want(value, wanted[id(node.outputs[0])])


_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")


def _list_sources(node: Node) -> list[Value]:
    return node.inputs if node.type == WHOLE_SUM else pieces.list_cut(node)
