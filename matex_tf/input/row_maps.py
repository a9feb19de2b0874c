"""`dataset.batch(...).map(function)`: a rank computes such a map for its slice of a batch, if the map allows it.

The map allows it if it treats rows independently: `lambda x, y: (x / 255, y)` can be computed for a slice,
`lambda x: x - tf.reduce_mean(x)` needs the batch. The placements of the ops show which is the case: a result with
placement `BATCH` is sharded as the batch is, a `WHOLE` one is equal on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matex_tf.input.functions import keep_apart
from matex_tf.lazy import tf
from matex_tf.rewrite.emit import Copy
from matex_tf.rewrite.placement import BATCH, WHOLE, Replicated, Sharded, Sizes
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.propagate import read_program
from matex_tf.rewrite.sharing import Exchanger, Slice


class RowMap(NamedTuple):
    """A map of batches that a rank computes for its slice.

    function: the map, a ConcreteFunction.
    program: its ops, with their placements. Captured tensors of the function are the last inputs.
    have_rows: which of the flat inputs have the rows of the batch.
    are_rows: which of the flat outputs have the rows of the batch; the others are equal on all ranks.
    """

    function: Any
    program: Program
    have_rows: Sequence[bool]
    are_rows: list[bool]

    def build(self, inputs: Sequence[Any], batch_slice: Slice) -> list[Any]:
        """The flat outputs for the inputs of this slice of the batch, in the current graph."""

        def compute_slice() -> list[Any]:
            graph = tf.compat.v1.get_default_graph()
            captured = map(graph.capture, self.function.captured_inputs)
            # The exchanger has nothing to do: a program with collectives is refused.
            return Copy(batch_slice, Exchanger()).build(self.program, [*inputs, *captured])

        def compute_whole() -> list[Any]:
            whole = [tf.ensure_shape(tensor, spec.shape) for tensor, spec in zip(inputs, self.function.inputs)]
            return tf.nest.flatten(self.function(*whole))

        counts = [tf.shape(tensor, tf.int64)[0] for tensor, has_rows in zip(inputs, self.have_rows) if has_rows]
        if not counts or not _may_use_slice(self.program):
            return keep_apart(compute_slice())
        # The program has one number of rows for all inputs: the slice's. If components of the batch have different
        # lengths, an element has all rows of each, and a rank runs the script's function.
        have_slice = tf.reduce_all(tf.equal(tf.stack(counts), batch_slice.count))
        return keep_apart(tf.nest.flatten(tf.cond(have_slice, compute_slice, compute_whole)))


def _may_use_slice(program: Program) -> bool:
    """Whether a result may depend on numbers of the slice: the map uses the number of rows (`Sizes`), an op is replaced
    (`emit`), or an input is cut to the slice. Otherwise the copy has the ops of the function, for any number of rows.
    """
    return any(
        node.decision.emit is not None
        or any(isinstance(value.placement, Sizes) for value in (*node.inputs, *node.outputs))
        or any(isinstance(need, (Sharded, Sizes)) for need in node.decision.needs)
        for node in program.iterate_nodes()
    ) or any(isinstance(value.placement, Sizes) for value in program.outputs)


def find_row_map(function: Any, are_rows: Sequence[bool]) -> RowMap | str:
    """The RowMap of `function`, a ConcreteFunction, or the reason why it cannot be computed by rows.

    are_rows: which of the inputs have the rows of the batch.

    It can be computed by rows if it needs no collective, and each result either has the rows of the batch, or is known
    to a rank without the other ranks: it is equal on all ranks (`Replicated`), or consists of sizes, such as the number
    of rows (`Sizes`), which the copy converts from those of the slice to those of the batch (`program.gives`).
    """
    placements = [BATCH if has_rows else WHOLE for has_rows in are_rows] + [WHOLE] * len(function.captured_inputs)
    try:
        program = read_program(function.graph, placements, takes_batches=False)
    except Exception as error:  # a rule of `rewrite` has failed; then every rank computes the script's own function
        return f"a map that cannot be read ({type(error).__name__}: {error})"
    output_placements = [value.placement for value in program.outputs]
    can_share = all(placement == BATCH or isinstance(placement, (Replicated, Sizes)) for placement in output_placements)
    program.gives = [BATCH if placement == BATCH else WHOLE for placement in output_placements]
    if program.has_collectives or not can_share:
        return "a map that needs the whole batch"
    return RowMap(function, program, are_rows, [placement == BATCH for placement in output_placements])
