"""What is iterated in place of a dataset, what is done before its first element, and how far it is read ahead.

What a generator, a `PyDataset` or another Python object has given does not come again. An iterator that ends before its
data do loses what it has read ahead: the next one begins behind that.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from matex_tf import tags
from matex_tf.sharding import pipelines, row_shares

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


def read_alike(dataset: Any, make: Callable[[Any], Any]) -> Any:
    """The dataset that `make` gives for `dataset`, read as far ahead as the script alone reads `dataset`.

    `make` gets the dataset without the `prefetch` that is its last step, which comes after what it makes, and may not
    itself read ahead. TensorFlow lets the number of elements grow from 1 on where a script leaves it the choice; here
    it stays 1, on all ranks alike. A pipeline that gives the same in each iteration is read ahead as it suits.
    """
    import tensorflow as tf

    if not any(map(pipelines.has_outside_state, row_shares.list_pipeline(dataset))):
        made = make(dataset)
        return made if made is dataset else made.prefetch(tf.data.AUTOTUNE)
    last, _ = pipelines.skip_kinds(dataset, ("OptionsDataset",))
    if pipelines.name_kind(last) == "PrefetchDataset":
        ahead = int(last._buffer_size)
        result = make(last._input_dataset.with_options(dataset.options()))
    else:
        ahead = tf.data.AUTOTUNE if _is_prefetch_added(last, dataset.options()) else 0
        result = make(dataset)
    ahead = 1 if ahead == tf.data.AUTOTUNE else ahead
    return result.prefetch(ahead) if ahead else result


def _is_prefetch_added(last: Any, options: Any) -> bool:
    """Whether TensorFlow adds a `prefetch` to a pipeline of which `last` is the last step."""
    is_off = options.autotune.enabled is False or options.experimental_optimization.inject_prefetch is False
    return not is_off and not pipelines.name_kind(last).startswith("Parallel")
