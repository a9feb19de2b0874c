"""The stage `map`, of rows and of batches, and records of files.

The front of a map (`functions.Split`) runs when a ticket is taken, and its results become a part of the ticket. The
back, all other ops, becomes work.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from matex_tf.input import advice, records
from matex_tf.input.deferred import Batches, Deferred, Rows, make_whole_batches, make_whole_rows
from matex_tf.input.functions import PYTHON, Split, require
from matex_tf.input.row_maps import RowMap, find_row_map
from matex_tf.input.tickets import Tensors, flatten, flatten_specs, map_dataset


def read_records(dataset: Any, indexed: records.Records) -> Rows:
    """The records of a dataset; the work is to read them."""
    spec = dataset.element_spec
    return Rows(
        tickets=indexed.tickets,
        spec=spec,
        compute=lambda ticket: flatten(spec, indexed.read(ticket[0])),
        is_work=True,
        files=[dataset],
        passed=[None] * len(flatten_specs(spec)),
    )


def map_rows(dataset: Any, inner: Rows) -> Rows:
    """The results of `dataset`, a map of the rows `inner`.

    The front runs before the work. If it needs results of the work, every rank makes the rows before the map whole.
    """
    split = Split(dataset._map_func.function)
    causes = [*inner.causes, *map(advice.explain_op, split.ordered)]
    if _needs_work(inner, split):
        inner = make_whole_rows(dataset._input_dataset)
    mapped = dataclasses.replace(
        inner,
        spec=dataset._map_func.output_structure,
        is_work=inner.is_work or split.is_work,
        causes=causes,
    )
    options = _choose_options(dataset, split)

    # Nothing needs the ticket of `inner`: the new ticket has only what the back takes.
    if split.front is not None and not inner.is_work and None not in inner.passed:

        def make_ticket(ticket: Tensors) -> Any:
            row = [ticket[index] for index in inner.passed if index is not None]
            return *(row[index] for index in split.back_takes), *split.build_front(row)

        tickets = map_dataset(inner.tickets, make_ticket, **options)
        return dataclasses.replace(mapped, tickets=tickets, compute=split.build_back, passed=split.passed)

    work = _Work(inner, split)

    def compute(ticket: Tensors) -> Tensors:
        unused_tensors, inputs = work.take(ticket)
        return require(unused_tensors, split.build_back(inputs))

    return dataclasses.replace(mapped, tickets=work.make_tickets(**options), compute=compute, passed=work.passed)


def map_batches(dataset: Any, inner: Batches) -> Batches:
    """The results of `dataset`, a map of the batches `inner`. If `_find_row_map` finds an obstacle, every rank makes
    the results whole.
    """
    split = Split(dataset._map_func.function)
    causes = [*inner.causes, *map(advice.explain_op, split.ordered)]
    row_map = _find_row_map(split, inner)
    if isinstance(row_map, str):  # the obstacle
        return make_whole_batches(dataset, [*causes, advice.explain_op(row_map)])
    work = _Work(inner, split)

    def compute(ticket: Tensors, batch_slice: Any) -> Tensors:
        unused_tensors, inputs = work.take(ticket, batch_slice)
        return require(unused_tensors, row_map.build(inputs, batch_slice))

    # A padded tensor that the map merely passes on is a padded result, which ranks lengthen later.
    taken_pads = {at: inner.pads[index] for at, index in enumerate(split.back_takes) if index in inner.pads}
    return dataclasses.replace(
        inner,
        tickets=work.make_tickets(),
        spec=dataset._map_func.output_structure,
        compute=compute,
        passed=work.passed,
        is_work=inner.is_work or split.is_work,
        causes=causes,
        are_rows=row_map.are_rows,
        count_rows=lambda ticket: inner.count_rows(ticket[: work.ticket_size]),
        pads={result: taken_pads[at] for result, at in enumerate(split.passed) if at in taken_pads},
    )


class _Work:
    """The back of a map of the elements `inner`. In its ticket, the front's results follow the ticket of `inner`.

    ticket_size: the number of tensors of the ticket of `inner`.
    passed: see `Deferred`.
    """

    def __init__(self, inner: Deferred, split: Split):
        self._inner, self._split = inner, split
        self.ticket_size = len(flatten_specs(inner.tickets.element_spec))
        front_count = split.back_input_count - len(split.back_takes)
        # The index, in the ticket, of each tensor that the back takes; None if it is computed.
        indices = [
            *(inner.passed[index] for index in split.back_takes),
            *range(self.ticket_size, self.ticket_size + front_count),
        ]
        self.passed = [None if at is None else indices[at] for at in split.passed]

    def make_tickets(self, **options: Any) -> Any:
        """The dataset of the tickets. options: of its map."""
        inner, split = self._inner, self._split

        def run_front(ticket: Tensors) -> Any:
            inputs = [None if index is None else ticket[index] for index in inner.passed]  # None: computed, later
            return *ticket, *split.build_front(inputs)

        return inner.tickets if split.front is None else map_dataset(inner.tickets, run_front, **options)

    def take(self, ticket: Tensors, *slices: Any) -> tuple[Tensors, Tensors]:
        """Compute the element of a ticket. Returns the computed tensors that the back does not take, whose errors
        count, as they stop the script; and the inputs of the back. slices: the slice of a batch.
        """
        inner, back_takes = self._inner, self._split.back_takes
        element = inner.compute(ticket[: self.ticket_size], *slices)
        are_unused = [at is None and index not in back_takes for index, at in enumerate(inner.passed)]
        unused_tensors = list(itertools.compress(element, are_unused)) if inner.is_work else []
        return unused_tensors, [*(element[index] for index in back_takes), *ticket[self.ticket_size :]]


def _needs_work(inner: Deferred, split: Split) -> bool:
    """Whether the front of a map takes tensors that are computed after the tickets of `inner`."""
    return any(inner.passed[index] is None for index in split.front_takes)


def _find_row_map(split: Split, inner: Batches) -> RowMap | str:
    """The back of a map of the batches `inner`, for a slice of a batch; or the reason why it needs the whole batch:

    1. the front needs tensors of the batch;
    2. the back computes with padded tensors. `padded_batch` pads rows to the longest row of the batch. The work pads to
       the longest row of the slice, and ranks lengthen the rows only after it (`batches.pad_alike`). So the map would
       get other shapes than in the script;
    3. a reason of `find_row_map`.
    """
    if _needs_work(inner, split) or not inner.pads.keys().isdisjoint(split.computes_with):
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
