"""The elements of a pipeline before batching, split into tickets and work.

Every rank takes all tickets; the work on an element is done by the rank whose slice has it. Of
`from_tensor_slices(paths).shuffle(100).map(load)`, the tickets are the shuffled paths, and the work is `load`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from matex_tf import tags
from matex_tf.input import memories, pipelines, records
from matex_tf.input.functions import PYTHON, Split, require
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
    reads_changing,
    zip_tickets,
)
from matex_tf.lazy import tf


class Elements(NamedTuple):
    """The elements of a dataset before batching.

    tickets: the dataset of their tickets.
    work: computes, in a graph, the flat tensors of the element from the ticket's flat tensors.
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
    return Elements(found.tickets, work, passed, dataset.element_spec, is_work=True, files=(dataset,))


def _make_leaf(dataset: Any, *kept: str) -> Elements:
    """The elements as their own tickets: every rank computes them."""
    passed: list[int | None] = list(range(len(flatten_specs(dataset.element_spec))))
    return Elements(dataset, lambda ticket: ticket, passed, dataset.element_spec, is_work=False, kept=kept)


def _map_elements(dataset: Any) -> Elements:
    """A map: what must run in order runs on the tickets, before batching; the rest is work."""
    split, inner = Split(dataset._map_func.function), find_elements(dataset._input_dataset)
    kept = (*inner.kept, *split.ordered)
    if any(inner.passed[index] is None for index in split.front_takes):  # the front needs results of the work
        inner = _make_leaf(dataset._input_dataset, *inner.kept)
    ticket_size, input_count = len(flatten_specs(inner.tickets.element_spec)), len(split.back_takes)
    # A new ticket is the ticket of `inner` and the front's results; without work before, just what the back takes.
    extends_ticket = inner.is_work or split.front is None

    def work(ticket: Tensors) -> Tensors:
        if not extends_ticket:
            return split.build_back(ticket)
        element = inner.work(ticket[:ticket_size])
        computed = [index for index, passed in enumerate(inner.passed) if passed is None]
        unused = [element[index] for index in computed if index not in split.back_takes]
        results = split.build_back([*(element[index] for index in split.back_takes), *ticket[ticket_size:]])
        return require(unused, results)

    def find_passed(index: int | None) -> int | None:
        """The tensor of the new ticket that equals the input `index` of the back; None if it is computed."""
        if index is None or not extends_ticket:
            return index
        is_input = index < input_count
        return inner.passed[split.back_takes[index]] if is_input else index - input_count + ticket_size

    return inner._replace(
        tickets=inner.tickets if split.front is None else _run_front(inner, split, dataset),
        work=work,
        passed=list(map(find_passed, split.passed)),
        spec=dataset._map_func.output_structure,
        is_work=inner.is_work or split.is_work,
        kept=kept,
    )


def _run_front(inner: Elements, split: Split, dataset: Any) -> Any:
    """The tickets of a map whose function has a front; see `_map_elements`."""

    def run(*element: Any) -> Any:
        ticket = flatten_element(inner.tickets.element_spec, element)
        inputs = [None if index is None else ticket[index] for index in inner.passed]
        before = ticket if inner.is_work else [inputs[index] for index in split.back_takes]
        return *before, *split.build_front(inputs)

    options: dict[str, Any] = {}
    if not PYTHON.isdisjoint(split.ordered) and getattr(dataset, "_num_parallel_calls", None) is not None:
        deterministic = {"true": True, "false": False}.get(dataset._deterministic)
        options = {"num_parallel_calls": dataset._num_parallel_calls, "deterministic": deterministic}
    return map_dataset(inner.tickets, run, **options)


def _cache_elements(dataset: Any) -> Elements:
    inner = find_elements(dataset._input_dataset)
    inner = inner._replace(caches=(*inner.caches, dataset))
    if not inner.is_work:
        return inner._replace(tickets=inner.tickets.cache())
    # The tickets are cached with their numbers, by which this rank remembers the work.
    specs = flatten_specs(inner.spec)
    if not memories.can_keep(specs) or not memories.can_keep(flatten_specs(inner.tickets.element_spec)):
        return _make_leaf(dataset, *inner.kept)
    if reads_changing(dataset):
        return _make_leaf(dataset, *inner.kept, CACHED_VARIABLES)
    memory = memories.Memory(specs)

    def work(ticket: Tensors) -> Tensors:
        number, *ticket = ticket
        return memory.recall(number, [tf.bitcast(digest_tensors(ticket), tf.int64)], lambda: inner.work(ticket))

    passed = [None if index is None else index + 1 for index in inner.passed]  # behind the number
    return inner._replace(tickets=inner.tickets.enumerate().cache(), work=work, passed=passed)


def _zip_elements(dataset: Any) -> Elements:
    zipped = [find_elements(each) for each in tf.nest.flatten(dataset._datasets)]
    tickets, split = zip_tickets([each.tickets for each in zipped])
    indices = split(list(range(len(flatten_specs(tickets.element_spec)))))

    def work(ticket: Tensors) -> Tensors:
        return join(each.work(own) for each, own in zip(zipped, split(ticket)))

    passed = [None if index is None else own[index] for each, own in zip(zipped, indices) for index in each.passed]
    kept, files, caches = (tuple(join(getattr(each, name) for each in zipped)) for name in ("kept", "files", "caches"))
    is_work = any(each.is_work for each in zipped)
    return Elements(tickets, work, passed, dataset.element_spec, is_work, kept, files, caches)
