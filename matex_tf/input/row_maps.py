"""Maps of rows, before `batch`, and records of files: what must run in order makes tickets, the rest becomes work.

A *ticket* is a cheap stand-in for a row; every rank takes all tickets. The *work* makes a row from its ticket, and a
rank does it for its own rows only (`deferred`). A map has two parts (`functions.Split`). The front, such as the draw of
a random number, runs when a ticket is taken, and its results become a part of the ticket. The back, all other ops,
becomes work.
"""

from __future__ import annotations

from typing import Any

from matex_tf.input import advice, records
from matex_tf.input.deferred import Deferred, make_whole
from matex_tf.input.functions import PYTHON, Split, require
from matex_tf.input.tickets import Tensors, flatten, flatten_specs, map_dataset


def read_records(dataset: Any, indexed: records.Records) -> Deferred:
    """The records of a dataset; the work is to read them."""
    spec = dataset.element_spec
    count = len(flatten_specs(spec))
    return make_whole(dataset, are_batches=False)._replace(
        tickets=indexed.tickets,
        compute=lambda ticket, _: flatten(spec, indexed.read(ticket[0])),
        is_work=True,
        passed=[None] * count,
        files=(dataset,),
    )


def map_rows(dataset: Any, inner: Deferred) -> Deferred:
    """A map of the rows `inner`: its front runs on the tickets, before batching; the rest is work.

    `passed`: for each tensor of a row, the index of the equal tensor in the ticket; None if work computes the tensor.
    """
    split = Split(dataset._map_func.function)
    causes = (*inner.causes, *map(advice.explain_op, split.ordered))
    if any(inner.passed[index] is None for index in split.front_takes):  # the front needs results of the work
        inner = make_whole(dataset._input_dataset, are_batches=False)
    ticket_size, input_count = len(flatten_specs(inner.tickets.element_spec)), len(split.back_takes)
    # The new ticket has the ticket of `inner`, then the front's results, if there is a front. In one case it has only
    # what the back takes: there is a front, and `inner` has no work, which would need the ticket of `inner`.
    keeps_ticket = inner.is_work or split.front is None

    def compute(ticket: Tensors, no_slice: None) -> Tensors:  # a row has no slice
        if not keeps_ticket:
            return split.build_back(ticket)
        row = inner.compute(ticket[:ticket_size], no_slice)
        computed = [index for index, passed in enumerate(inner.passed) if passed is None]
        unused = [row[index] for index in computed if index not in split.back_takes]  # their errors count
        results = split.build_back([*(row[index] for index in split.back_takes), *ticket[ticket_size:]])
        return require(unused, results)

    def find_passed(index: int | None) -> int | None:
        """The index, in the new ticket, of the tensor that the back takes as input `index`; None if it is computed."""
        if index is None or not keeps_ticket:
            return index
        is_input = index < input_count  # else a result of the front, which follows the ticket of `inner`
        return inner.passed[split.back_takes[index]] if is_input else index - input_count + ticket_size

    spec = dataset._map_func.output_structure
    return inner._replace(
        tickets=inner.tickets if split.front is None else _run_front(inner, split, dataset),
        compute=compute,
        spec=spec,
        are_rows=[False] * len(flatten_specs(spec)),
        is_work=inner.is_work or split.is_work,
        passed=list(map(find_passed, split.passed)),
        causes=causes,
    )


def _run_front(inner: Deferred, split: Split, dataset: Any) -> Any:
    """The tickets of a map whose function has a front; see `map_rows`."""

    def run(ticket: Tensors) -> Any:
        inputs = [None if index is None else ticket[index] for index in inner.passed]  # None: computed, later
        before = ticket if inner.is_work else [inputs[index] for index in split.back_takes]
        return *before, *split.build_front(inputs)

    options: dict[str, Any] = {}
    # Python code in the front runs in parallel if it does in the script.
    if not PYTHON.isdisjoint(split.ordered) and getattr(dataset, "_num_parallel_calls", None) is not None:
        deterministic = {"true": True, "false": False}.get(dataset._deterministic)
        options = {"num_parallel_calls": dataset._num_parallel_calls, "deterministic": deterministic}
    return map_dataset(inner.tickets, run, **options)
