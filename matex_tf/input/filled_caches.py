"""A `cache()` of elements that vary between iterations is filled once, as alone, even if it is iterated in two ways.

If ranks share the work, they cache tickets. If a script iterates the same `cache` in a way that ranks cannot share,
TensorFlow caches elements. The first of the two to be filled determines the elements.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from matex_tf import tags
from matex_tf.input import elements, pipelines, tickets
from matex_tf.lazy import tf
from matex_tf.runtime import notes
from matex_tf.sharding.slice_bounds import list_pipeline

_FILLED, _AS_TICKETS, _AS_ELEMENTS = "how a cache was filled", "tickets", "elements"
CONFLICT = "a cache, of elements that come otherwise each time, that was iterated before without being shared"
_FILLED_TWICE = (
    "a cache() of random elements, or of elements in a random order, is iterated in two ways, of which ranks share "
    "one. It is filled twice, and the results are not exactly those of the script alone. Iterate it in one way, or "
    "write the random part behind the cache"
)


def _list_varying(dataset: Any) -> list[Any]:
    """The in-memory caches of a pipeline whose elements would differ if they were filled again."""
    caches = [step for step in list_pipeline(dataset) if pipelines.name_kind(step) == "CacheDataset"]
    return [cache for cache in caches if tickets.is_in_memory(cache) and _varies(cache)]


def _varies(cache: Any) -> bool:
    return any(map(pipelines.may_vary, list_pipeline(cache._input_dataset)))


def _note(caches: Iterable[Any], contents: str) -> None:
    """Record that caches are filled with tickets or elements, unless they are filled already."""
    for cache in caches:
        tags.get_or_make_tag(cache, _FILLED, lambda: contents)


def _has(cache: Any, contents: str) -> bool:
    return bool(tags.get_tag(cache, _FILLED) == contents)


def may_share(dataset: Any, caches: Iterable[Any]) -> bool:
    """Whether ranks may share batches, with tickets in the `caches` of a dataset, which are filled that way from now
    on.
    """
    replaced = set(map(id, caches))
    varying = _list_varying(dataset)
    if any(id(cache) in replaced and _has(cache, _AS_ELEMENTS) for cache in varying):
        return False
    _note((cache for cache in varying if id(cache) in replaced), _AS_TICKETS)
    _note_elements([cache for cache in varying if id(cache) not in replaced])
    return True


def _note_elements(caches: list[Any]) -> None:
    """Record that caches are filled with elements, and tell the user if one has tickets already."""
    if any(_has(cache, _AS_TICKETS) for cache in caches):
        notes.print_note(_FILLED_TWICE)
    _note(caches, _AS_ELEMENTS)


def give_same(dataset: Any) -> Any:
    """The dataset to iterate if ranks share nothing of a dataset: its elements are those of the filled caches."""
    varying = _list_varying(dataset)
    if not any(_has(cache, _AS_TICKETS) for cache in varying):
        _note(varying, _AS_ELEMENTS)
        return dataset
    with tf.init_scope():
        found = elements.find_elements(dataset)
        if not set(map(id, varying)) <= set(map(id, found.caches)):
            _note_elements(varying)
            return dataset

        def work(*ticket: Any) -> Any:
            tensors = found.work(tickets.flatten_element(found.tickets.element_spec, ticket))
            return tickets.pack(dataset.element_spec, tensors)

        return tickets.map_dataset(found.tickets, work).with_options(dataset.options())
