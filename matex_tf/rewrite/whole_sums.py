"""Finds the partial sums that are best converted where they arise: to whole tensors, or to pieces.

Whole: one op needs the sum whole, and another takes it unchanged. If only the first one took the all-reduced sum, the
result of the second one would be a partial sum, which needs another collective later.

Pieces: each rank updates its piece of an optimizer's variable (`pieces`), and needs the same piece of the gradient. If
elementwise ops compute that from sums, such as the gradient's sum times a factor, each sum is reduced to pieces, and
the ops compute pieces. A rank then receives its piece only. But an op that combines the sum with rows cannot take a
piece, and would gather the rows: such a sum becomes whole.
"""

from __future__ import annotations

from typing import Any

from matex_tf.rewrite import pieces
from matex_tf.rewrite.nodes import Value
from matex_tf.rewrite.placement import PARTIAL, WHOLE, Placement, cut
from matex_tf.rewrite.programs import Program

Key = tuple[Any, ...]

WHOLE_SUM = "Whole"
"""The type of the stand-in op that converts a sum."""
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")


def find_needed_sums(program: Program) -> dict[Key, Placement]:
    """The placements to which sums are converted where they arise, by the keys of the sums; see above."""
    converted: set[Key] = set()
    unchanged: set[Key] = set()
    _note_needs(program, converted, unchanged)
    needed = dict.fromkeys(converted & unchanged, WHOLE)
    if any(value.placement.cuts for value in program.inputs):  # the step takes variables in pieces
        found: dict[Key, Placement] = {}
        met_rows: set[Key] = set()
        _find_cuts(program, {}, converted, found, met_rows)
        needed |= {key: WHOLE if key in met_rows else piece for key, piece in found.items()}
    return needed


def _note_needs(program: Program, converted: set[Key], unchanged: set[Key]) -> None:
    """Add the keys of the sums that some op takes converted, and the keys of sums that some op takes unchanged."""
    for value, need, node in program.iterate_needs([WHOLE] * len(program.outputs)):
        if value.placement.kind == PARTIAL and (node is None or node.type != WHOLE_SUM):
            (unchanged if need is None else converted).add(value.key)
    for node in program.nodes:
        for body in node.bodies:
            _note_needs(body, converted, unchanged)


def _find_cuts(
    program: Program, cuts_by_id: dict[int, tuple[int, ...]], converted: set[Key], found: dict[Key, Placement],
    met_rows: set[Key],
) -> None:  # fmt: skip
    """Go back from pieces to the sums that they are made of.

    cuts_by_id: the cuts of the pieces that some op needs, directly or later, by the ids of values.
    converted: the keys of sums that some op takes converted.
    found: receives the pieces of the sums, by their keys.
    met_rows: receives the keys of the values that an op combines with rows, directly or later.
    """

    def note_piece(value: Value, cuts: tuple[int, ...]) -> None:
        """Record that an op needs a piece of a value, if the value has as many entries as the pieces."""
        if pieces.count_entries(value) == cuts[-1]:
            cuts_by_id.setdefault(id(value), cuts)
            if value.placement.is_partial:
                found.setdefault(value.key, cut(cuts))

    for node in reversed(program.nodes):
        is_branching = node.type in _BRANCHES
        # Ops that need pieces: in a branch, or this one.
        for body in node.bodies:
            if is_branching:
                met_rows.update(inner.key for inner, value in zip(body.outputs, node.outputs) if value.key in met_rows)
            _find_cuts(body, cuts_by_id, converted, found, met_rows)
            for inner, value in zip(body.inputs, node.inputs[1:] if is_branching else ()):
                if inner.key in met_rows:
                    met_rows.add(value.key)
                if id(inner) in cuts_by_id and not value.placement.is_piece_handle:
                    note_piece(value, cuts_by_id[id(inner)])
        for value, need in zip(node.inputs, node.decision.needs):
            if need is not None and need.is_piece:
                note_piece(value, need.cuts)
        # An elementwise op: what is true of its result is true of the inputs that have as many entries.
        sources = node.inputs if node.type == WHOLE_SUM else pieces.list_cut(node)
        meets_rows = any(value.placement.is_sharded for value in node.inputs)
        if is_branching:  # its bodies tell; if they were not read, each input may be a part of each output
            meets_rows = not node.bodies and (meets_rows or any(value.key in met_rows for value in node.outputs))
        if meets_rows:
            met_rows.update(value.key for value in node.inputs)
        if len(node.outputs) == 1 and node.outputs[0].key in met_rows:
            met_rows.update(value.key for value in sources)
        elif len(node.outputs) == 1 and id(node.outputs[0]) in cuts_by_id:
            for value in sources:  # a sum that all ops take unchanged stays as it is
                if node.type == WHOLE_SUM or not value.placement.is_partial or value.key in converted:
                    note_piece(value, cuts_by_id[id(node.outputs[0])])
