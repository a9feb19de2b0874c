"""The elements of a pipeline before batching: tickets, which every rank takes, and the work on them.

The rank whose slice has the element does the work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from matex_tf import tags
from matex_tf.input import memories, pipelines, records
from matex_tf.input.functions import PYTHON, Split
from matex_tf.input.tickets import (
    CACHED_VARIABLES,
    MAPS,
    ORDER,
    Tensors,
    digest_tensors,
    flatten,
    flatten_element,
    flatten_specs,
    is_in_memory,
    join,
    map_dataset,
    name_digest,
    reads_changing,
    zip_tickets,
)
from matex_tf.lazy import tf


class Elements(NamedTuple):
    """The elements of a dataset before batching.

    tickets: a dataset.
    work: computes the flat tensors of the element from those of a ticket.
    passed: for each flat tensor of the element, the index of the ticket's tensor that it equals; None if it is
        computed.
    spec: of an element.
    is_work: there is something to compute or to check behind the tickets.
    kept: the types of the ops because of which every rank works on each element.
    files: the datasets of indexed records, which follow changes of files between iterations.
    caches: the datasets of caches that are replaced by caches of tickets.
    """

    tickets: Any
    work: Callable[[Tensors], Tensors]
    passed: list[int | None]
    spec: Any
    is_work: bool
    kept: tuple[str, ...] = ()
    files: tuple[Any, ...] = ()
    caches: tuple[Any, ...] = ()


def find_elements(dataset: Any) -> Elements:
    """The elements of a dataset as tickets and work; without work if a step cannot be deferred."""
    return tags.get_or_make_tag(dataset, "tickets of elements", lambda: _find_elements(dataset))


def _find_elements(dataset: Any) -> Elements:
    kind = pipelines.name_kind(dataset)
    if kind in ORDER:
        inner = find_elements(dataset._input_dataset)
        return inner._replace(tickets=ORDER[kind](dataset, inner.tickets))
    if kind in MAPS:
        return _map_elements(dataset)
    if kind == "CacheDataset" and is_in_memory(dataset):
        return _cache_elements(dataset)
    if kind == "ZipDataset":
        return _zip_elements(dataset)
    found = records.make_tickets(dataset)
    return _make_leaf(dataset) if found is None else _read_records(dataset, found)


def _read_records(dataset: Any, found: records.Records) -> Elements:
    def work(ticket: Tensors) -> Tensors:
        return flatten(dataset.element_spec, found.read(ticket[0]))

    passed: list[int | None] = [None for _ in flatten_specs(dataset.element_spec)]
    return Elements(found.tickets, work, passed, dataset.element_spec, True, files=(dataset,))


def _make_leaf(dataset: Any, *kept: str) -> Elements:
    count = len(flatten_specs(dataset.element_spec))
    return Elements(dataset, lambda ticket: ticket, list(range(count)), dataset.element_spec, False, kept)


def _put_in_front(inner: Elements, split: Split, dataset: Any) -> Any:
    """The tickets after the ops in front have run. Their results follow the tickets of `inner` if its work is deferred,
    and otherwise the tensors of the element that the rest of the function needs.
    """
    waits = inner.is_work

    def run(*element: Any) -> Any:
        ticket = flatten_element(inner.tickets.element_spec, element)
        given = [None if number is None else ticket[number] for number in inner.passed]
        before = ticket if waits else [given[number] for number in split.held]
        return *before, *split.build_front(given)

    calls_python = not PYTHON.isdisjoint(split.ordered)
    parallel = getattr(dataset, "_num_parallel_calls", None) if calls_python else None
    deterministic = {"true": True, "false": False}.get(getattr(dataset, "_deterministic", ""))
    options = {} if parallel is None else {"num_parallel_calls": parallel, "deterministic": deterministic}
    return map_dataset(inner.tickets, run, **options)


def _map_elements(dataset: Any) -> Elements:
    split, inner = Split(dataset._map_func.function), find_elements(dataset._input_dataset)
    spec, kept = dataset._map_func.output_structure, (*inner.kept, *split.ordered)
    if split.front is None:
        is_work = inner.is_work or split.is_work

        def work(ticket: Tensors) -> Tensors:
            element = inner.work(ticket)
            return split.build_back([element[number] for number in split.held])

        passed = [None if at is None else inner.passed[split.held[at]] for at in split.passed]
        return inner._replace(work=work, passed=passed, spec=spec, is_work=is_work, kept=kept)
    if any(inner.passed[number] is None for number in split.front_takes):
        inner = _make_leaf(dataset._input_dataset, *inner.kept)
    waits, size = inner.is_work, len(flatten_specs(inner.tickets.element_spec))
    is_work, held = waits or split.is_work, len(split.held)

    def work_behind(ticket: Tensors) -> Tensors:
        if not waits:
            return split.build_back(ticket)
        element = inner.work(ticket[:size])
        return split.build_back([*(element[number] for number in split.held), *ticket[size:]])

    def find_passed(at: int | None) -> int | None:
        if at is None or not waits:
            return at
        return inner.passed[split.held[at]] if at < held else at - held + size

    passed = [*map(find_passed, split.passed)]
    made = inner._replace(tickets=_put_in_front(inner, split, dataset), work=work_behind, passed=passed)
    return made._replace(spec=spec, is_work=is_work, kept=kept)


def _cache_elements(dataset: Any) -> Elements:
    inner = find_elements(dataset._input_dataset)
    inner = inner._replace(caches=(*inner.caches, dataset))
    if not inner.is_work:
        return inner._replace(tickets=inner.tickets.cache())
    specs = flatten_specs(inner.spec)
    if not memories.can_keep(specs) or not memories.can_keep(flatten_specs(inner.tickets.element_spec)):
        return _make_leaf(dataset, *inner.kept)
    if reads_changing(dataset):
        return _make_leaf(dataset, *inner.kept, CACHED_VARIABLES)
    memory = memories.Memory(specs)

    def work(ticket: Tensors) -> Tensors:
        return memory.recall(ticket[0], [name_digest(digest_tensors(ticket[1:]))], lambda: inner.work(ticket[1:]))

    passed = [None if at is None else at + 1 for at in inner.passed]
    return inner._replace(tickets=inner.tickets.enumerate().cache(), work=work, passed=passed)


def _zip_elements(dataset: Any) -> Elements:
    parts = [find_elements(one) for one in tf.nest.flatten(dataset._datasets)]
    tickets, split = zip_tickets([one.tickets for one in parts])
    numbers = split(list(range(len(flatten_specs(tickets.element_spec)))))

    def work(ticket: Tensors) -> Tensors:
        return join(one.work(own) for one, own in zip(parts, split(ticket)))

    passed = [None if at is None else own[at] for one, own in zip(parts, numbers) for at in one.passed]
    kept = (tuple(join(getattr(one, name) for one in parts)) for name in ("kept", "files", "caches"))
    return Elements(tickets, work, passed, dataset.element_spec, any(one.is_work for one in parts), *kept)
