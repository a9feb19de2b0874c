"""Finds the partial sums that are best converted where they arise, to whole tensors or to pieces.

Any other sum is converted separately for each op that needs it in another placement.

Whole: if one op needs a sum whole, and another op takes the same sum unchanged, the sum is all-reduced where it arises.
Otherwise the result of the second op would be a partial sum, too, and would need a collective of its own later.

Pieces: each rank updates its piece of an optimizer's variable (`pieces`), so it needs the same piece of the gradient.
For example, the update needs a piece of the gradient's sum times a factor. This product is elementwise. So the sum is
reduced to pieces where it arises, and each rank multiplies its piece: it receives no other piece. But an op that
combines a sum with rows needs all pieces. A sum that such an op takes, too, becomes whole.
"""

from __future__ import annotations

from typing import Any

from matex_tf.rewrite import pieces
from matex_tf.rewrite.graph_ops import BRANCHES
from matex_tf.rewrite.nodes import Node, Value
from matex_tf.rewrite.placement import WHOLE, Partial, Piece, PieceHandle, Placement, Sharded
from matex_tf.rewrite.programs import Program

Key = tuple[Any, ...]
"""The key of a value (`Value.key`), which is the same in each reading of a graph."""

CONVERTED_SUM = "ConvertedSum"
"""The type of the node that converts a sum where it arises. No op of the script's graph belongs to this node."""


def find_needed_sums(program: Program) -> dict[Key, Placement]:
    """The placements to which sums are converted where they arise, by the keys of the sums."""
    converted_keys: set[Key] = set()  # the keys of sums that some op needs in another placement
    unchanged_keys: set[Key] = set()  # the keys of sums that some op takes unchanged
    for inner_program in program.iterate_programs():
        converted_keys.update(value.key for value in inner_program.outputs if isinstance(value.placement, Partial))
        for value, need, node in inner_program.iterate_needs():
            if isinstance(value.placement, Partial) and node is not None and node.type != CONVERTED_SUM:
                keys = unchanged_keys if need is None else converted_keys
                keys.add(value.key)
    placements = dict.fromkeys(converted_keys & unchanged_keys, WHOLE)
    if any(isinstance(value.placement, PieceHandle) for value in program.inputs):  # the step takes variables in pieces
        search = _PieceSearch(converted_keys)
        search.read(program)
        placements |= {key: WHOLE if key in search.met_rows else piece for key, piece in search.sums.items()}
    return placements


class _PieceSearch:
    """Goes back through a program, from the pieces that ops need to the sums from which the pieces are computed.

    The way back leads from a result to its matching inputs, whose entries are in the places of the result's entries, as
    in elementwise ops: a piece of the result needs the same pieces of these inputs.

    sums: for each such sum, the piece to which it can be converted, by the sum's key.
    met_rows: the keys of values that an op combines with rows, or whose results an op combines with rows.
    _converted: the keys of the sums that some op needs in another placement.
    _cuts: the cuts of values of which an op needs a piece, or of whose results an op needs a piece.
    """

    def __init__(self, converted: set[Key]):
        self.sums: dict[Key, Placement] = {}
        self.met_rows: set[Key] = set()
        self._converted = converted
        self._cuts: dict[Key, tuple[int, ...]] = {}

    def read(self, program: Program) -> None:
        """Go through a program and the programs of its branches and loops, from the last op to the first."""
        for node in reversed(program.nodes):
            for body in node.bodies:
                if node.type in BRANCHES:
                    self._read_branch(node, body)
                else:
                    self.read(body)
            for value, need in zip(node.inputs, node.decision.needs):
                if isinstance(need, Piece):
                    self._note_piece(value, need.cuts)
            if self._combines_rows(node):
                self.met_rows.update(value.key for value in node.inputs)
            if len(node.outputs) == 1:
                self._pass_back(node, node.outputs[0])

    def _read_branch(self, node: Node, body: Program) -> None:
        """Read a branch of `node`. If an output of the node meets rows, the branch's output does. If an input of the
        branch meets rows, or is needed in pieces, the node's input is.
        """
        outputs = zip(body.outputs, node.outputs)
        self.met_rows.update(inner_value.key for inner_value, value in outputs if value.key in self.met_rows)
        self.read(body)
        for inner_value, value in zip(body.inputs, node.inputs[1:]):  # input 0 selects the branch
            if inner_value.key in self.met_rows:
                self.met_rows.add(value.key)
            # The handle of a variable in pieces is no value that could be reduced.
            if inner_value.key in self._cuts and not isinstance(value.placement, PieceHandle):
                self._note_piece(value, self._cuts[inner_value.key])

    def _combines_rows(self, node: Node) -> bool:
        """Whether an op may combine each of its inputs with rows."""
        has_rows = any(isinstance(value.placement, Sharded) for value in node.inputs)
        if node.type not in BRANCHES:
            return has_rows
        # `_read_branch` finds which inputs meet rows. If there are no bodies, any input may be a part of any output.
        return not node.bodies and (has_rows or any(value.key in self.met_rows for value in node.outputs))

    def _pass_back(self, node: Node, result: Value) -> None:
        """If a result meets rows, so do its matching inputs. If it is needed in pieces, so are they."""
        is_conversion = node.type == CONVERTED_SUM
        inputs = node.inputs if is_conversion else pieces.list_matching_inputs(node)
        if result.key in self.met_rows:
            self.met_rows.update(value.key for value in inputs)
        elif result.key in self._cuts:
            for value in inputs:
                # A sum that all ops take unchanged stays as it is.
                if is_conversion or not value.placement.is_row_sum or value.key in self._converted:
                    self._note_piece(value, self._cuts[result.key])

    def _note_piece(self, value: Value, cuts: tuple[int, ...]) -> None:
        """Record that an op needs a piece of a value, if the value has as many entries as all pieces together."""
        if pieces.count_entries(value) == cuts[-1]:
            self._cuts.setdefault(value.key, cuts)
            if value.placement.is_row_sum:
                self.sums.setdefault(value.key, Piece(cuts))
