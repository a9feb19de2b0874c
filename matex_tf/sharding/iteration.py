"""What is iterated in place of a dataset, and what is done before its first element."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from matex_tf import tags
from matex_tf.sharding import row_shares

_instead: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_exempt: weakref.WeakSet[Any] = weakref.WeakSet()
_BEFORE = "work before the iteration"


def iterate_instead(dataset: Any, other: Any) -> None:
    """Whoever iterates `dataset`, or a map of it, from now on gets the elements of `other`."""
    _instead[dataset] = other


def prepare_iteration(dataset: Any, work: Callable[[], None]) -> None:
    """Whoever first iterates `dataset`, or a map of it, has `work` done before.

    The dataset holds `work`, which may hold the dataset: both go where nobody iterates it.
    """
    tags.set_tag(dataset, _BEFORE, work)


def find_replacement(dataset: Any) -> Any:
    """What is to be iterated in place of a dataset."""
    for one in (dataset, getattr(dataset, "_input_dataset", None)):
        work = None if one is None else tags.remove_tag(one, _BEFORE)
        if work is not None:
            work()
    function = getattr(getattr(dataset, "_map_func", None), "_func", None)
    source = getattr(dataset, "_input_dataset", None)
    if function is not None and source is not None and source in _instead:
        return exempt_dataset(_instead[source].map(function))
    return _instead.get(dataset, dataset)


def exempt_dataset(dataset: Any) -> Any:
    """Mark a dataset as one whose batches are not to be sliced (again) where it is iterated."""
    _exempt.add(dataset)
    return dataset


def is_exempt(dataset: Any) -> bool:
    return dataset in _exempt or any(source in _exempt for source in row_shares.list_pipeline(dataset))
