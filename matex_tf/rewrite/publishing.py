"""Assignments of pieces to variables that every rank has whole: the ranks publish the new values, all at once."""

from __future__ import annotations

from collections.abc import Sequence

from matex_tf.rewrite.nodes import Node
from matex_tf.rewrite.pieces import ASSIGNS
from matex_tf.rewrite.placement import Placement
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.waves import is_exchanged


def find_publications(program: Program, needs: Sequence[Placement]) -> dict[int, Node]:
    """By the id of a value in pieces, the assignment of it to a variable, where nothing else needs it whole."""
    users: dict[int, list[Node | None]] = {}
    for node in program.nodes:
        for at, (value, need) in enumerate(zip(node.inputs, node.decision.needs)):
            if value.placement.is_piece and is_exchanged(value, need):
                users.setdefault(id(value), []).append(node if node.type in ASSIGNS and at == 1 else None)
    for value, need in zip(program.outputs, needs):
        if value.placement.is_piece and is_exchanged(value, need):
            users.setdefault(id(value), []).append(None)
    return {value: of[0] for value, of in users.items() if len(of) == 1 and of[0] is not None}
