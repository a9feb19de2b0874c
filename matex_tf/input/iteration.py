"""How far a dataset is read ahead.

What a generator, a `PyDataset` or another Python object has given does not come again. An iterator that ends before its
data do loses what it has read ahead: the next one begins behind that.
"""

from __future__ import annotations

from typing import Any

from matex_tf.input import pipelines
from matex_tf.lazy import tf
from matex_tf.sharding import slice_bounds


def read_alike(dataset: Any) -> Any:
    """The dataset, read equally far ahead on all ranks, and as far as the script alone reads it.

    TensorFlow lets the number of elements grow from 1 on where a script leaves it the choice; here
    it stays 1, on all ranks alike. A pipeline that gives the same in each iteration is read ahead as it suits.
    """
    if not any(map(pipelines.has_outside_state, slice_bounds.list_pipeline(dataset))):
        return dataset
    last, _ = pipelines.skip_kinds(dataset, ("OptionsDataset",))
    ahead = count_ahead(dataset)
    if pipelines.name_kind(last) == "PrefetchDataset":
        dataset = last._input_dataset.with_options(dataset.options())
    return dataset.prefetch(ahead) if ahead else dataset


def count_ahead(dataset: Any) -> int:
    """How many elements the script alone reads ahead at the end of a pipeline, 1 where TensorFlow has the choice."""
    last, _ = pipelines.skip_kinds(dataset, ("OptionsDataset",))
    if pipelines.name_kind(last) == "PrefetchDataset":
        ahead = int(last._buffer_size)
    else:
        ahead = tf.data.AUTOTUNE if _is_prefetch_added(last, dataset.options()) else 0
    return 1 if ahead == tf.data.AUTOTUNE else ahead


def count_ahead_at_least(dataset: Any) -> int:
    """As `count_ahead`, but 1 or more where an element that is lost comes again: the next one is made meanwhile."""
    is_lost = any(map(pipelines.has_outside_state, slice_bounds.list_pipeline(dataset)))
    return count_ahead(dataset) if is_lost else max(1, count_ahead(dataset))


def _is_prefetch_added(last: Any, options: Any) -> bool:
    """Whether TensorFlow adds a `prefetch` to a pipeline of which `last` is the last step."""
    is_off = options.autotune.enabled is False or options.experimental_optimization.inject_prefetch is False
    return not is_off and not pipelines.name_kind(last).startswith("Parallel")
