"""Maps of rows and batches, and records of files: what must run in order makes tickets, the rest becomes work.

A *ticket* is a cheap stand-in for an element; every rank takes all tickets. The *work* makes an element from its
ticket: a row, or this rank's slice of a batch (`deferred`). A map has two parts (`functions.Split`). The front, such as
the draw of a random number, runs when a ticket is taken, and its results become a part of the ticket. The back, all
other ops, becomes work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matex_tf.input import advice, records
from matex_tf.input.deferred import Deferred, make_whole
from matex_tf.input.functions import PYTHON, Split, require
from matex_tf.input.row_maps import RowMap, find_row_map
from matex_tf.input.tickets import Tensors, flatten, flatten_specs, map_dataset


def read_records(dataset: Any, indexed: records.Records) -> Deferred:
    """The records of a dataset; the work is to read them."""
    spec = dataset.element_spec
    tensor_count = len(flatten_specs(spec))
    return make_whole(dataset, are_batches=False)._replace(
        tickets=indexed.tickets,
        compute=lambda ticket, _: flatten(spec, indexed.read(ticket[0])),
        is_work=True,
        passed=[None] * tensor_count,
        files=(dataset,),
    )


def map_elements(dataset: Any, inner: Deferred, are_batches: bool) -> Deferred:
    """The results of `dataset`, a map of the elements `inner`, which are batches or rows.

    The front runs before the work. If it needs results of the work, every rank makes the rows before the map whole. Of
    batches, every rank makes the results of the map whole, also if `_find_row_map` finds another obstacle.
    """
    split, spec = Split(dataset._map_func.function), dataset._map_func.output_structure
    causes = (*inner.causes, *map(advice.explain_op, split.ordered))
    run_back: Callable[[Tensors, Any], Tensors]
    if are_batches:
        row_map = _find_row_map(split, inner)
        if isinstance(row_map, str):  # the obstacle
            return make_whole(dataset, are_batches, [*causes, advice.explain_op(row_map)])
        run_back, are_rows = row_map.build, row_map.are_rows
    else:
        if _needs_work(split, inner):
            inner = make_whole(dataset._input_dataset, are_batches)
        run_back, are_rows = lambda inputs, _: split.build_back(inputs), [False] * len(flatten_specs(spec))
    ticket_size, input_count = len(flatten_specs(inner.tickets.element_spec)), len(split.back_takes)
    # The new ticket has the ticket of `inner`, then the front's results, if there is a front. In one case it has only
    # what the back takes: there is a front, and `inner` has rows without work, which would need the ticket of `inner`.
    keeps_ticket = are_batches or inner.is_work or split.front is None

    def run_front(ticket: Tensors) -> Any:
        inputs = [None if index is None else ticket[index] for index in inner.passed]  # None: computed, later
        kept_tensors = ticket if keeps_ticket else [inputs[index] for index in split.back_takes]
        return *kept_tensors, *split.build_front(inputs)

    def compute(ticket: Tensors, batch_slice: Any) -> Tensors:  # None: a row has no slice
        if not keeps_ticket:
            return run_back(ticket, batch_slice)
        element = inner.compute(ticket[:ticket_size], batch_slice)
        # Tensors that the map does not take. Their errors count, as they stop the script.
        computed_indices = [index for index, passed in enumerate(inner.passed) if passed is None and inner.is_work]
        unused_tensors = [element[index] for index in computed_indices if index not in split.back_takes]
        inputs = [*(element[index] for index in split.back_takes), *ticket[ticket_size:]]
        return require(unused_tensors, run_back(inputs, batch_slice))

    def find_passed(index: int | None) -> int | None:
        """The index, in the new ticket, of the tensor that the back takes as input `index`; None if it is computed."""
        if index is None or not keeps_ticket:
            return index
        is_input = index < input_count  # else a result of the front, which follows the ticket of `inner`
        return inner.passed[split.back_takes[index]] if is_input else index - input_count + ticket_size

    # A padded tensor that the map merely passes on is a padded result, which ranks lengthen later (`Deferred.pads`).
    pads = {}
    for output_index, index in enumerate(split.passed):
        if index is not None and index < input_count and split.back_takes[index] in inner.pads:
            pads[output_index] = inner.pads[split.back_takes[index]]
    front_options = {} if are_batches else _choose_options(dataset, split)
    return inner._replace(
        tickets=inner.tickets if split.front is None else map_dataset(inner.tickets, run_front, **front_options),
        compute=compute,
        count_rows=lambda ticket: inner.count_rows(ticket[:ticket_size]),
        spec=spec,
        are_rows=are_rows,
        is_work=inner.is_work or split.is_work,
        passed=list(map(find_passed, split.passed)),
        pads=pads,
        causes=causes,
    )


def _needs_work(split: Split, inner: Deferred) -> bool:
    """Whether the front of a map needs tensors that work on the elements before the map computes."""
    return any(inner.passed[index] is None for index in split.front_takes)


def _find_row_map(split: Split, inner: Deferred) -> RowMap | str:
    """The back of a map of the batches `inner`, for a slice of a batch; or the reason why it needs the whole batch:

    1. the front needs tensors of the batch;
    2. the back computes with padded tensors. `padded_batch` pads rows to the longest row of the batch. The work pads to
       the longest row of the slice, and ranks lengthen the rows only after it (`batches.pad_alike`).
       So the map would get other shapes than in the script;
    3. a reason of `find_row_map`.
    """
    if _needs_work(split, inner) or not inner.pads.keys().isdisjoint(split.computes_with):
        return "a map of padded batches" if inner.pads else "a map of batches"
    # The back takes tensors of the batch, then results of the front. These have no rows, as the front takes no tensor
    # of the batch.
    front_count = split.back_input_count - len(split.back_takes)
    are_rows = [inner.are_rows[index] for index in split.back_takes] + [False] * front_count
    return find_row_map(split.trace_back(), are_rows)


def _choose_options(dataset: Any, split: Split) -> dict[str, Any]:
    """The options of the map of rows that runs the front: Python code runs in parallel if it does in the script.

    The front of a map of batches takes nothing of the batch, so its Python draws or counts. It runs in order, as calls
    at the same time would give each rank other results.
    """
    if PYTHON.isdisjoint(split.ordered) or getattr(dataset, "_num_parallel_calls", None) is None:
        return {}
    is_deterministic = {"true": True, "false": False}.get(dataset._deterministic)
    return {"num_parallel_calls": dataset._num_parallel_calls, "deterministic": is_deterministic}
