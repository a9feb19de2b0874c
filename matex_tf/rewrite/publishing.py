"""Assignments of pieces to variables that every rank has whole: the ranks publish the new values, all at once."""

from __future__ import annotations

from collections.abc import Sequence

from matex_tf.rewrite.control import needs_exchange
from matex_tf.rewrite.nodes import Node
from matex_tf.rewrite.pieces import ASSIGNS
from matex_tf.rewrite.placement import Placement
from matex_tf.rewrite.programs import Program


def find_publications(program: Program, needs: Sequence[Placement]) -> dict[int, Node]:
    """By the id of a value in pieces, the assignment of it to a variable, where nothing else needs it whole."""
    users: dict[int, list[Node | None]] = {}
    for value, need, node in program.iterate_needs(needs):
        if value.placement.is_piece and needs_exchange(value.placement, need):
            is_assigned = node is not None and node.type in ASSIGNS and node.inputs[1] is value
            users.setdefault(id(value), []).append(node if is_assigned else None)
    return {value: of[0] for value, of in users.items() if len(of) == 1 and of[0] is not None}
