"""`dataset.batch(...).map(function)`: a rank computes such a map for its slice of a batch, if the map allows it.

A slice is the rows of a batch that a rank trains on. The map allows it if it treats rows independently. Example:
`lambda x, y: (x / 255, y)` can be computed for a slice; `lambda x: x - tf.reduce_mean(x)` needs the batch. The
placements of the ops (`rewrite.placement`) show which is the case: a result with placement `BATCH` is sharded as the
batch is, a `WHOLE` one is equal on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matex_tf.input.functions import keep_apart
from matex_tf.lazy import tf
from matex_tf.rewrite.emit import Copy
from matex_tf.rewrite.placement import BATCH, REPLICATED, SIZES, WHOLE
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.propagate import read_program
from matex_tf.rewrite.sharing import Exchanger, Slice


class RowMap(NamedTuple):
    """A map of batches that a rank computes for its slice.

    program: the ops of the map, with their placements.
    captured: further inputs of the program, after the tensors of the batch: tensors outside of all graphs.
    are_rows: which of the flat outputs have the rows of the batch; the others are equal on all ranks.
    """

    program: Program
    captured: list[Any]
    are_rows: list[bool]

    def build(self, inputs: Sequence[Any], batch_slice: Slice) -> list[Any]:
        """The flat outputs for the inputs of this slice of the batch, in the current graph."""
        graph = tf.compat.v1.get_default_graph()
        copy = Copy(batch_slice, Exchanger())
        return keep_apart(copy.build(self.program, [*inputs, *map(graph.capture, self.captured)]))


def find_row_map(function: Any, are_rows: Sequence[bool]) -> RowMap | str:
    """The RowMap of `function`, a ConcreteFunction, or the reason why it cannot be computed by rows.

    are_rows: which of the inputs have the rows of the batch.

    It can be computed by rows if it needs no collective, and each result either has the rows of the batch, or is known
    to a rank without the other ranks: it is equal on all ranks (`REPLICATED`), or has numbers of rows (`SIZES`).
    """
    captured = list(function.captured_inputs)
    placements = [BATCH if has_rows else WHOLE for has_rows in are_rows] + [WHOLE] * len(captured)
    try:
        program = read_program(function.graph, placements, takes_batches=False)
    except Exception as error:  # a rule of `rewrite` has failed; then every rank computes the script's own function
        return f"a map that cannot be read ({type(error).__name__}: {error})"
    output_placements = [value.placement for value in program.outputs]
    can_share = all(placement == BATCH or placement.kind in (REPLICATED, SIZES) for placement in output_placements)
    program.gives = [BATCH if placement == BATCH else WHOLE for placement in output_placements]
    if program.has_collectives or not can_share:
        return "a map that needs the whole batch"
    return RowMap(program, captured, [placement == BATCH for placement in output_placements])
