"""Splits the elements of a `tf.data` pipeline into tickets, which every rank takes, and work on its rows (`deferred`).

The work is what a rank computes from a ticket for its own rows only. A step, such as `map`, is a dataset whose input is
the dataset before it. So `find_deferred` calls itself from the last step back to the source, and each step changes what
its input gives. Of `from_tensor_slices(paths).shuffle(100).map(load)` the tickets are the paths; `shuffle` orders the
tickets, and `map` adds `load` to the work. A step that cannot be deferred, such as a generator, gives its elements as
tickets, without work.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from matex_tf import tags
from matex_tf.input import advice, batching, maps, memories, pipelines, records
from matex_tf.input.changing_state import reads_changing
from matex_tf.input.deferred import Deferred, make_whole
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
from matex_tf.rewrite.sharing import Slice


def find_deferred(dataset: Any, are_batches: bool) -> Deferred:
    """The elements of a dataset as tickets and work. If a step cannot be deferred, every rank computes it, and all
    before it, in order to make the tickets.

    are_batches: ranks share each element by its rows; otherwise each element is a row.
    """
    # The result is kept with the dataset: each further call must find the caches that earlier iterations have filled.
    tag = "tickets of batches" if are_batches else "tickets of rows"
    return tags.get_or_make_tag(dataset, tag, lambda: _find_deferred(dataset, are_batches))


def _find_deferred(dataset: Any, are_batches: bool) -> Deferred:
    """`find_deferred` for a dataset whose result is not kept yet."""
    kind = pipelines.name_kind(dataset)
    if kind in ORDER:  # a step that only orders elements, such as `shuffle`, orders the tickets in their place
        inner = find_deferred(dataset._input_dataset, are_batches)
        return inner._replace(tickets=ORDER[kind](dataset, inner.tickets))
    if kind in MAPS:
        return maps.map_elements(dataset, find_deferred(dataset._input_dataset, are_batches), are_batches)
    if kind in batching.KINDS and are_batches:
        return batching.batch(dataset, find_deferred(dataset._input_dataset, are_batches=False))
    if kind == "CacheDataset" and is_in_memory(dataset):
        return _cache(dataset, find_deferred(dataset._input_dataset, are_batches), are_batches)
    if kind == "ZipDataset":
        return _zip(
            dataset,
            [find_deferred(zipped_dataset, are_batches) for zipped_dataset in tf.nest.flatten(dataset._datasets)],
        )
    # The `Records` if the dataset reads rows from files that can be indexed; else the reason why not, or "".
    indexed = "" if are_batches else records.make_tickets(dataset)
    if isinstance(indexed, records.Records):
        return maps.read_records(dataset, indexed)
    return make_whole(dataset, are_batches, advice.explain_step(dataset, reason=indexed))


def _cache(dataset: Any, inner: Deferred, are_batches: bool) -> Deferred:
    """A `cache`: the tickets are cached, and a rank keeps its results of the work before the `cache` in a `Memory`.

    A cache of elements would make every rank do the work for all rows. A cache of tickets still keeps what must not
    change from one pass to the next: the order, and results of random steps. The cases:
    - no work: the tickets are cached, and nothing else.
    - results that cannot be kept, such as ragged tensors: a cache of elements, on every rank.
    - work that reads variables: also a cache of elements. The script's cache keeps the results of the first pass. A
      rank that gets other rows in a later pass would work on them with later values of the variables.
    - other work: each ticket gets a number before it is cached, by which `Memory` finds the rank's results again.
    """
    inner = inner._replace(caches=(*inner.caches, dataset))
    if not inner.is_work:
        return inner._replace(tickets=inner.tickets.cache())
    specs = open_rows(flatten_specs(inner.spec), inner.are_rows)
    # A ticket of a row may have no dataset or other object, which have no hash. A ticket of a batch may have a window.
    ticket_specs = [] if are_batches else flatten_specs(inner.tickets.element_spec)
    if not specs or not memories.can_keep([*specs, *ticket_specs]):
        return make_whole(dataset, are_batches, inner.causes)
    if reads_changing(dataset):
        return make_whole(dataset, are_batches, [*inner.causes, advice.explain_op(advice.CACHED_VARIABLES)])
    memory = memories.Memory(specs)

    def compute(ticket: Tensors, batch_slice: Slice | None) -> Tensors:
        number, *ticket = ticket
        # Results are valid for the same rows (`batch_slice`; None for a ticket of a single row) of the same ticket. The
        # digest tells tickets apart that have the same number: if a pass ends before the cache is full, the next pass
        # may number other tickets.
        rows = [] if batch_slice is None else [batch_slice.first, batch_slice.count]
        key = [*rows, tf.bitcast(digest_ticket(ticket, inner.windows), tf.int64)]
        return memory.recall(number, key, lambda: inner.compute(ticket, batch_slice))

    return inner._replace(
        tickets=inner.tickets.enumerate().cache(),
        compute=compute,
        count_rows=lambda ticket: inner.count_rows(ticket[1:]),
        passed=[None if index is None else index + 1 for index in inner.passed],  # + 1: the number comes first
        windows={index + 1: spec for index, spec in inner.windows.items()},
    )


def _zip(dataset: Any, zipped: Sequence[Deferred]) -> Deferred:
    """A `zip`: its ticket joins the tickets of the zipped datasets."""
    tickets, split = zip_tickets([deferred.tickets for deferred in zipped])
    # `passed` (the ticket's tensors that an element repeats), `windows` and `pads` (the element's padded tensors) of
    # each zipped dataset count its own tensors from 0. They become indices in the joined ticket and the joined element.
    # For tickets of 2 and 1 tensors `indices` is [[0, 1], [2]]. For elements of 3 and 1 tensors `starts` begins with 0
    # and 3, the indices of each dataset's first tensor.
    indices = split(list(range(len(flatten_specs(tickets.element_spec)))))
    starts = itertools.accumulate((len(deferred.are_rows) for deferred in zipped), initial=0)

    def compute(ticket: Tensors, batch_slice: Slice | None) -> Tensors:
        return join(deferred.compute(part, batch_slice) for deferred, part in zip(zipped, split(ticket)))

    return Deferred(
        tickets=tickets,
        compute=compute,
        count_rows=lambda ticket: join(deferred.count_rows(part) for deferred, part in zip(zipped, split(ticket))),
        spec=dataset.element_spec,
        are_rows=join(deferred.are_rows for deferred in zipped),
        is_work=any(deferred.is_work for deferred in zipped),
        passed=[
            None if position is None else part[position]
            for deferred, part in zip(zipped, indices)
            for position in deferred.passed
        ],
        windows={
            part[position]: spec
            for deferred, part in zip(zipped, indices)
            for position, spec in deferred.windows.items()
        },
        pads={
            start + index: value for deferred, start in zip(zipped, starts) for index, value in deferred.pads.items()
        },
        causes=tuple(join(deferred.causes for deferred in zipped)),
        files=tuple(join(deferred.files for deferred in zipped)),
        caches=tuple(join(deferred.caches for deferred in zipped)),
    )
