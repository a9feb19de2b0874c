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
_OTHERS = (
    "a cache() of random elements, or of elements in a random order, is iterated in two ways, of which ranks share "
    "one. It is filled twice, and the results are not exactly those of the script alone. Iterate it in one way, or "
    "write the random part behind the cache"
)


def _list_varying(dataset: Any) -> list[Any]:
    """The in-memory caches of a pipeline whose elements would differ if they were filled again."""
    caches = [one for one in list_pipeline(dataset) if pipelines.name_kind(one) == "CacheDataset"]
    return [one for one in caches if tickets.is_in_memory(one) and _varies(one)]


def _varies(cache: Any) -> bool:
    return any(map(pipelines.gives_others, list_pipeline(cache._input_dataset)))


def _note(caches: Iterable[Any], how: str) -> None:
    for one in caches:
        tags.get_or_make_tag(one, _FILLED, lambda: how)


def _is_filled(one: Any, how: str) -> bool:
    return bool(tags.get_tag(one, _FILLED) == how)


def may_share(dataset: Any, caches: Iterable[Any]) -> bool:
    """Whether ranks may share batches, with tickets in the `caches` of a dataset, which are filled that way from now
    on.
    """
    replaced = set(map(id, caches))
    varying = _list_varying(dataset)
    if any(id(one) in replaced and _is_filled(one, _AS_ELEMENTS) for one in varying):
        return False
    _note((one for one in varying if id(one) in replaced), _AS_TICKETS)
    _note_elements(one for one in varying if id(one) not in replaced)
    return True


def _note_elements(caches: Iterable[Any]) -> None:
    found = list(caches)
    if any(_is_filled(one, _AS_TICKETS) for one in found):
        notes.print_note(_OTHERS)
    _note(found, _AS_ELEMENTS)


def give_same(dataset: Any) -> Any:
    """The dataset to iterate if ranks share nothing of a dataset: its elements are those of the filled caches."""
    varying = _list_varying(dataset)
    if not any(_is_filled(one, _AS_TICKETS) for one in varying):
        _note(varying, _AS_ELEMENTS)
        return dataset
    with tf.init_scope():
        found = elements.find_elements(dataset)
        if not {id(one) for one in varying} <= {id(one) for one in found.caches}:
            _note_elements(varying)
            return dataset

        def work(*ticket: Any) -> Any:
            made = found.work(tickets.flatten_element(found.tickets.element_spec, ticket))
            return tickets.pack(dataset.element_spec, made)

        return tickets.map_dataset(found.tickets, work).with_options(dataset.options())
