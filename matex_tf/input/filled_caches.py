"""Fills a `cache` of random elements only once, with tickets or with elements.

It is filled with tickets if ranks share the iteration. If a script iterates a cache in both ways, two fillings with
random elements would differ, and the script alone has one. So the first iteration fills the cache:

- with elements: later iterations are not shared (`claim_for_tickets`);
- with tickets: an iteration that is not shared computes its elements from them (`use_filled_caches`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from matex_tf import tags
from matex_tf.input import pipelines, splitting, tickets
from matex_tf.lazy import tf
from matex_tf.runtime import notes
from matex_tf.sharding.slice_bounds import list_pipeline

_FILLED = "how a cache was filled"
_AS_TICKETS, _AS_ELEMENTS = "tickets", "elements"
CONFLICT = "a cache, of elements that come otherwise each time, that was iterated before without being shared"
_FILLED_TWICE = (
    "a cache() of random elements, or of elements in a random order, is iterated in two ways, and ranks share "
    "only one of them. It is filled twice, and the results are not exactly those of the script alone. Iterate it in "
    "one way, or write the random part behind the cache"
)


def _list_random_caches(dataset: Any) -> list[Any]:
    """The in-memory caches of a pipeline whose elements would differ if they were filled again."""
    caches = [stage for stage in list_pipeline(dataset) if pipelines.name_kind(stage) == "CacheDataset"]
    return [
        cache
        for cache in caches
        if tickets.is_in_memory(cache) and any(map(pipelines.may_vary, list_pipeline(cache._input_dataset)))
    ]


def _note(cache: Any, contents: str) -> None:
    """Record that a cache is filled with tickets or elements. If it is filled already, the record stays; tell the user
    if that was with tickets, and now it is with elements.
    """
    if tags.get_or_make_tag(cache, _FILLED, lambda: contents) != contents:
        notes.print_note(_FILLED_TWICE)


def claim_for_tickets(dataset: Any, caches: Iterable[Any]) -> bool:
    """Record that the `caches` of a dataset are filled with tickets. Returns False if one of them has elements."""
    ids_with_tickets = set(map(id, caches))
    contents_of_caches = [
        (cache, _AS_TICKETS if id(cache) in ids_with_tickets else _AS_ELEMENTS)
        for cache in _list_random_caches(dataset)
    ]
    if any(
        contents == _AS_TICKETS and tags.get_tag(cache, _FILLED) == _AS_ELEMENTS
        for cache, contents in contents_of_caches
    ):
        return False
    for cache, contents in contents_of_caches:
        _note(cache, contents)
    return True


def use_filled_caches(dataset: Any) -> Any:
    """The dataset to iterate if ranks share nothing of it. Its elements come from the tickets of filled caches."""
    random_caches = _list_random_caches(dataset)
    if any(tags.get_tag(cache, _FILLED) == _AS_TICKETS for cache in random_caches):
        with tf.init_scope():
            # The dataset as tickets and the work that makes elements of them, with the caches that hold tickets.
            deferred = splitting.find_rows(dataset)
            # Otherwise a random cache cannot hold tickets: all of them are filled with elements.
            if set(map(id, random_caches)) <= set(map(id, deferred.caches)):

                def work(ticket: tickets.Tensors) -> Any:
                    return tickets.pack(dataset.element_spec, deferred.compute(ticket))

                return tickets.map_dataset(deferred.tickets, work).with_options(dataset.options())
    for cache in random_caches:
        _note(cache, _AS_ELEMENTS)
    return dataset
