"""Finds the tickets and the work of a pipeline, stage by stage.

`find_rows` and `find_batches` go from the last stage back to the source. Each stage changes what its input gives: of
`from_tensor_slices(paths).shuffle(100).map(load)` the tickets are the paths; `shuffle` orders the tickets, and `map`
adds `load` to the work. A stage that cannot be deferred, such as a generator, gives its elements as tickets, without
work: every rank computes it, and all before it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from matex_tf import tags
from matex_tf.input import advice, batching, maps, memories, pipelines, records
from matex_tf.input.changing_state import reads_changing
from matex_tf.input.deferred import Batches, Deferred, Rows, inherit, make_whole_batches, make_whole_rows
from matex_tf.input.tickets import (
    MAPS,
    ORDER,
    Tensors,
    digest_ticket,
    flatten_specs,
    is_in_memory,
    join,
    open_rows,
    zip_tickets,
)
from matex_tf.lazy import tf


def find_rows(dataset: Any) -> Rows:
    """The elements of a dataset as rows."""
    # The result is kept with the dataset: each further call must find the caches that earlier iterations have filled.
    return tags.get_or_make_tag(dataset, "tickets of rows", lambda: _find_rows(dataset))


def _find_rows(dataset: Any) -> Rows:
    kind = pipelines.name_kind(dataset)
    if kind in MAPS:
        return maps.map_rows(dataset, find_rows(dataset._input_dataset))
    if passed_on := _pass_on(dataset, find_rows, make_whole_rows):
        return passed_on
    if kind == "ZipDataset":
        return _zip_rows(dataset)
    indexed = records.make_tickets(dataset)  # if it reads rows from files that can be indexed; else why not, or ""
    if isinstance(indexed, records.Records):
        return maps.read_records(dataset, indexed)
    return make_whole_rows(dataset, advice.explain_stage(dataset, reason=indexed))


def find_batches(dataset: Any) -> Batches:
    """The elements of a dataset as batches, of which ranks compute slices."""
    return tags.get_or_make_tag(dataset, "tickets of batches", lambda: _find_batches(dataset))


def _find_batches(dataset: Any) -> Batches:
    kind = pipelines.name_kind(dataset)
    if kind in MAPS:
        return maps.map_batches(dataset, find_batches(dataset._input_dataset))
    if kind in batching.KINDS:
        return batching.batch(dataset, find_rows(dataset._input_dataset))
    if passed_on := _pass_on(dataset, find_batches, make_whole_batches):
        return passed_on
    if kind == "ZipDataset":
        return _zip_batches(dataset)
    return make_whole_batches(dataset, advice.explain_stage(dataset))


def _pass_on(dataset: Any, find: Callable[[Any], Any], make_whole: Callable[..., Any]) -> Any:
    """The elements of a stage that gives the elements of its input: in another order, or cached. None for other stages.

    find, make_whole: the functions for rows, or for batches.
    """
    kind = pipelines.name_kind(dataset)
    if kind in ORDER:  # the stage orders the tickets in place of the elements
        inner = find(dataset._input_dataset)
        return dataclasses.replace(inner, tickets=ORDER[kind](dataset, inner.tickets))
    if kind == "CacheDataset" and is_in_memory(dataset):
        return _cache(dataset, find(dataset._input_dataset), make_whole)
    return None


def _cache(dataset: Any, inner: Deferred, make_whole: Callable[..., Any]) -> Any:
    """A `cache`: the tickets are cached, and a rank keeps its results of the work before the `cache` in a `Memory`.

    A cache of elements would make every rank do the work for all rows. A cache of tickets still keeps what must not
    change from one pass to the next: the order, and results of random stages. The cases:
    - no work: the tickets are cached, and nothing else.
    - results that cannot be kept, such as ragged tensors: a cache of elements, on every rank.
    - work that reads variables: also a cache of elements. The script's cache keeps the results of the first pass. A
      rank that gets other rows in a later pass would work on them with later values of the variables.
    - other work: each ticket gets a number before it is cached, by which `Memory` finds the rank's results again.
    """
    inner = dataclasses.replace(inner, caches=[*inner.caches, dataset])
    if not inner.is_work:
        return dataclasses.replace(inner, tickets=inner.tickets.cache())
    specs, windows, ticket_specs = (
        flatten_specs(inner.spec),
        dict[int, Any](),
        flatten_specs(inner.tickets.element_spec),
    )
    if isinstance(inner, Batches):  # a ticket of a row may have no dataset or other object, which have no hash
        specs, windows, ticket_specs = open_rows(specs, inner.are_rows), inner.windows, []
    if not specs or not memories.can_keep([*specs, *ticket_specs]):
        return make_whole(dataset, inner.causes)
    if reads_changing(dataset):
        return make_whole(dataset, [*inner.causes, advice.explain_op(advice.CACHED_VARIABLES)])
    memory = memories.Memory(specs)

    def compute(ticket: Tensors, *slices: Any) -> Tensors:
        number, *ticket = ticket
        # Results are valid for the same rows (`slices` has the slice of a batch) of the same ticket. The digest tells
        # tickets apart that have the same number: if a pass ends before the cache is full, the next pass may number
        # other tickets.
        rows = [bound for batch_slice in slices for bound in (batch_slice.first, batch_slice.count)]
        key = [*rows, tf.bitcast(digest_ticket(ticket, windows), tf.int64)]
        return memory.recall(number, key, lambda: inner.compute(ticket, *slices))

    # In a ticket, the number comes before the tensors that `inner` counts from 0.
    changes: dict[str, Any] = {"passed": [None if index is None else index + 1 for index in inner.passed]}
    if isinstance(inner, Batches):
        count_rows = inner.count_rows
        changes["count_rows"] = lambda ticket: count_rows(ticket[1:])
        changes["windows"] = {index + 1: spec for index, spec in windows.items()}
    return dataclasses.replace(inner, tickets=inner.tickets.enumerate().cache(), compute=compute, **changes)


def _zip_rows(dataset: Any) -> Rows:
    """A `zip`: its ticket joins the tickets of the zipped datasets."""
    zipped = list(map(find_rows, tf.nest.flatten(dataset._datasets)))
    tickets, split, indices = zip_tickets([rows.tickets for rows in zipped])
    return Rows(
        **inherit(*zipped),
        tickets=tickets,
        spec=dataset.element_spec,
        compute=lambda ticket: join(rows.compute(part) for rows, part in zip(zipped, split(ticket))),
        passed=_join_passed(zipped, indices),
    )


def _join_passed(zipped: Sequence[Deferred], indices: Sequence[Sequence[int]]) -> list[int | None]:
    """`Deferred.passed` of a `zip`. indices: for each zipped dataset, the indices of its ticket's tensors."""
    return [None if at is None else part[at] for inner, part in zip(zipped, indices) for at in inner.passed]


def _zip_batches(dataset: Any) -> Batches:
    """`_zip_rows` for batches."""
    zipped = list(map(find_batches, tf.nest.flatten(dataset._datasets)))
    tickets, split, indices = zip_tickets([batches.tickets for batches in zipped])
    # The index, in an element, of the first tensor of each zipped dataset: for elements of 3 and 1 tensors 0 and 3.
    starts = itertools.accumulate((len(batches.are_rows) for batches in zipped), initial=0)

    def compute(ticket: Tensors, batch_slice: Any) -> Tensors:
        return join(batches.compute(part, batch_slice) for batches, part in zip(zipped, split(ticket)))

    return Batches(
        **inherit(*zipped),
        tickets=tickets,
        spec=dataset.element_spec,
        compute=compute,
        passed=_join_passed(zipped, indices),
        are_rows=join(batches.are_rows for batches in zipped),
        count_rows=lambda ticket: join(batches.count_rows(part) for batches, part in zip(zipped, split(ticket))),
        windows={part[at]: spec for batches, part in zip(zipped, indices) for at, spec in batches.windows.items()},
        pads={start + at: value for batches, start in zip(zipped, starts) for at, value in batches.pads.items()},
    )
