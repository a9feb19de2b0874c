"""Splits the elements of a pipeline into tickets and work (`deferred`), step by step from its source."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from matex_tf import tags
from matex_tf.input import advice, batch_maps, batching, memories, pipelines, records, row_maps
from matex_tf.input.changing_state import reads_changing
from matex_tf.input.deferred import Deferred, make_whole
from matex_tf.input.tickets import (
    MAPS,
    ORDER,
    Tensors,
    digest_tensors,
    flatten_specs,
    is_in_memory,
    join,
    open_rows,
    zip_tickets,
)
from matex_tf.lazy import tf
from matex_tf.rewrite.sharing import Slice


def find_deferred(dataset: Any, are_batches: bool) -> Deferred:
    """The elements of a dataset as tickets and work. If a step cannot be deferred, all before it is in the tickets.

    are_batches: ranks share each element by its rows; otherwise each element is a row.
    """
    tag = "tickets of batches" if are_batches else "tickets of rows"
    return tags.get_or_make_tag(dataset, tag, lambda: _find_deferred(dataset, are_batches))


def _find_deferred(dataset: Any, are_batches: bool) -> Deferred:
    kind = pipelines.name_kind(dataset)
    if kind in ORDER:
        inner = find_deferred(dataset._input_dataset, are_batches)
        return inner._replace(tickets=ORDER[kind](dataset, inner.tickets))
    if kind in MAPS:
        map_elements = batch_maps.map_batches if are_batches else row_maps.map_rows
        return map_elements(dataset, find_deferred(dataset._input_dataset, are_batches))
    if kind in batching.KINDS and are_batches:
        return batching.batch(dataset, find_deferred(dataset._input_dataset, are_batches=False))
    if kind == "CacheDataset" and is_in_memory(dataset):
        return _cache(dataset, find_deferred(dataset._input_dataset, are_batches), are_batches)
    if kind == "ZipDataset":
        return _zip(dataset, [find_deferred(each, are_batches) for each in tf.nest.flatten(dataset._datasets)])
    indexed = "" if are_batches else records.make_tickets(dataset)
    if isinstance(indexed, records.Records):
        return row_maps.read_records(dataset, indexed)
    return make_whole(dataset, are_batches, advice.explain_step(dataset, reason=indexed))


def _cache(dataset: Any, inner: Deferred, are_batches: bool) -> Deferred:
    """A `cache`: the tickets are cached, and a rank keeps its results of the work before the `cache` in a `Memory`."""
    inner = inner._replace(caches=(*inner.caches, dataset))
    if not inner.is_work:
        return inner._replace(tickets=inner.tickets.cache())
    specs = open_rows(flatten_specs(inner.spec), inner.are_rows)
    ticket_specs = [] if are_batches else flatten_specs(inner.tickets.element_spec)  # those that `digest` covers
    if not specs or not memories.can_keep([*specs, *ticket_specs]):
        return make_whole(dataset, are_batches, inner.causes)
    if reads_changing(dataset):
        return make_whole(dataset, are_batches, [*inner.causes, advice.explain_op(advice.CACHED_VARIABLES)])
    memory = memories.Memory(specs)  # the cached ticket of an element begins with its number, the key of the memory

    def compute(ticket: Tensors, batch_slice: Slice | None) -> Tensors:
        number, *ticket = ticket
        rows = [] if batch_slice is None else [batch_slice.first, batch_slice.count]
        key = [*rows, tf.bitcast(inner.digest(ticket), tf.int64)]
        return memory.recall(number, key, lambda: inner.compute(ticket, batch_slice))

    return inner._replace(
        tickets=inner.tickets.enumerate().cache(),
        compute=compute,
        digest=lambda ticket: inner.digest(ticket[1:]),
        count_rows=lambda ticket: inner.count_rows(ticket[1:]),
        passed=[None if index is None else index + 1 for index in inner.passed],  # the number comes first
    )


def _zip(dataset: Any, zipped: Sequence[Deferred]) -> Deferred:
    """A `zip`: its ticket joins the tickets of the zipped datasets."""
    tickets, split = zip_tickets([each.tickets for each in zipped])
    indices = split(list(range(len(flatten_specs(tickets.element_spec)))))  # of each dataset's tensors in a ticket
    starts = itertools.accumulate((len(each.are_rows) for each in zipped), initial=0)  # of each one's in an element

    def compute(ticket: Tensors, batch_slice: Slice | None) -> Tensors:
        return join(each.compute(own, batch_slice) for each, own in zip(zipped, split(ticket)))

    return Deferred(
        tickets=tickets,
        compute=compute,
        digest=lambda ticket: digest_tensors([each.digest(own) for each, own in zip(zipped, split(ticket))]),
        count_rows=lambda ticket: join(each.count_rows(own) for each, own in zip(zipped, split(ticket))),
        spec=dataset.element_spec,
        are_rows=join(each.are_rows for each in zipped),
        is_work=any(each.is_work for each in zipped),
        passed=[None if at is None else own[at] for each, own in zip(zipped, indices) for at in each.passed],
        pads={start + index: value for each, start in zip(zipped, starts) for index, value in each.pads.items()},
        causes=tuple(join(each.causes for each in zipped)),
        files=tuple(join(each.files for each in zipped)),
        caches=tuple(join(each.caches for each in zipped)),
    )
