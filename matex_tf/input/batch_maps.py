"""`dataset.batch(...).map(function)`: a rank computes such a map for its slice of a batch, if the map allows it.

A slice is the rows of a batch that a rank trains on. The map allows it if it treats rows independently. Example:
`lambda x, y: (x / 255, y)` can be computed for a slice; `lambda x: x - tf.reduce_mean(x)` needs the batch. The
placements of the ops (`rewrite.placement`) show which is the case: a result with placement `BATCH` is sharded as the
batch is, a `WHOLE` one is equal on all ranks.

The batches come as a `Deferred` (`input.deferred`): as tickets, cheap stand-ins which every rank takes for all batches,
and as work, which makes a slice of the batch from its ticket. The map is added to both. `Split` divides its function:
the front has the ops that must run in the script's order for every batch, such as the draw of a random number. Every
rank runs it when it takes a ticket, and appends its results to the ticket. The back has all other ops: more work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matex_tf.input import advice
from matex_tf.input.deferred import Deferred, make_whole
from matex_tf.input.functions import Split, keep_apart, require
from matex_tf.input.tickets import Tensors, digest_tensors, flatten_element, flatten_specs, map_dataset
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
    outputs = [value.placement for value in program.outputs]
    can_share = all(placement == BATCH or placement.kind in (REPLICATED, SIZES) for placement in outputs)
    program.gives = [BATCH if placement == BATCH else WHOLE for placement in outputs]
    if program.has_collectives or not can_share:
        return "a map that needs the whole batch"
    return RowMap(program, captured, [placement == BATCH for placement in outputs])


def map_batches(dataset: Any, inner: Deferred) -> Deferred:
    """The results of `dataset`, a map of the batches `inner`. A rank computes its slice of them, or all rows of them:

    1. all rows if the front needs tensors of the batch: it runs when a ticket is taken, before the work makes these;
    2. all rows if the back computes with padded tensors. `padded_batch` pads rows to the longest row of the batch. The
       work pads to the longest row of the slice, and ranks lengthen the rows only after it (`pad_alike` in
       `input.shared_batches`). So the map would get other shapes than in the script;
    3. all rows if `find_row_map` finds that the back needs the whole batch;
    4. otherwise its slice.

    Where ranks compute all rows, the results are their own tickets (`make_whole`), and --explain prints the causes.
    """
    split = Split(dataset._map_func.function)
    # `split.ordered` has the types of the ops that need a front. `front_takes` and `back_takes` have the indices of the
    # tensors of the batch that front and back take; with some, `computes_with`, the back computes.
    causes = (*inner.causes, *map(advice.explain_op, split.ordered))
    needs_batch_in_order = bool(split.front_takes)
    computes_with_padding = not inner.pads.keys().isdisjoint(split.computes_with)
    if needs_batch_in_order or computes_with_padding:
        obstacle = "a map of padded batches" if inner.pads else "a map of batches"
        return make_whole(dataset, are_batches=True, causes=[*causes, advice.explain_op(obstacle)])
    # The back takes tensors of the batch, then results of the front. These have no rows, as the front takes no tensor
    # of the batch.
    input_count, front_count = len(split.back_takes), split.back_input_count - len(split.back_takes)
    are_rows = [inner.are_rows[index] for index in split.back_takes] + [False] * front_count
    row_map = find_row_map(split.trace_back(), are_rows)
    if isinstance(row_map, str):  # the obstacle
        return make_whole(dataset, are_batches=True, causes=[*causes, advice.explain_op(row_map)])
    ticket_size = len(flatten_specs(inner.tickets.element_spec))  # without the front's results, which follow

    def run_front(*element: Any) -> Any:
        ticket = flatten_element(inner.tickets.element_spec, element)
        return *ticket, *split.build_front([None] * len(inner.are_rows))  # None: tensors of the batch, all unused

    def compute(ticket: Tensors, batch_slice: Slice) -> Tensors:
        batch = inner.compute(ticket[:ticket_size], batch_slice)
        # Tensors that the map does not take. They are computed nevertheless, because an error in them would stop the
        # script (`require`).
        unused = [tensor for index, tensor in enumerate(batch) if inner.is_work and index not in split.back_takes]
        results = row_map.build([*(batch[index] for index in split.back_takes), *ticket[ticket_size:]], batch_slice)
        return require(unused, results)

    def digest(ticket: Tensors) -> Any:
        # A hash by which ranks compare their batches. The back gives equal results for equal inputs, so it is enough to
        # hash its inputs: the batch and the front's results.
        front_results, digest_before = ticket[ticket_size:], inner.digest(ticket[:ticket_size])
        return digest_tensors([digest_before, *front_results]) if front_results else digest_before

    # A padded tensor that the map merely passes on is a padded result, which ranks lengthen later (`Deferred.pads`).
    # split.passed: for each result, the index of the input of the back that it equals; None if it is computed.
    # are_inputs: for each result that is a tensor of the batch, its index and its index among the inputs of the back.
    # passed: by the index of the result, the index of the tensor in the batch.
    are_inputs = [(at, index) for at, index in enumerate(split.passed) if index is not None and index < input_count]
    passed = {at: split.back_takes[index] for at, index in are_inputs}
    return inner._replace(
        tickets=inner.tickets if split.front is None else map_dataset(inner.tickets, run_front),
        count_rows=lambda ticket: inner.count_rows(ticket[:ticket_size]),
        compute=compute,
        digest=digest,
        are_rows=row_map.are_rows,
        spec=dataset._map_func.output_structure,
        is_work=True,
        causes=causes,
        pads={at: inner.pads[index] for at, index in passed.items() if index in inner.pads},
    )
