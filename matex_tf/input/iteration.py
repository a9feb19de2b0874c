"""How far a dataset is read ahead.

Elements of a generator, a `PyDataset` or another Python object do not come again: an iterator that ends early loses the
elements that it has read ahead, and the next one begins after them. So ranks must read equally far ahead.
"""

from __future__ import annotations

from typing import Any

from matex_tf.input import pipelines
from matex_tf.lazy import tf
from matex_tf.sharding import slice_bounds


def read_alike(dataset: Any) -> Any:
    """The dataset, read equally far ahead on all ranks, and as far as the script alone reads it.

    If the script leaves the number of elements to TensorFlow, TensorFlow lets the number grow from 1; here it stays 1
    on all ranks. A pipeline whose iterations do not affect one another is returned as it is.
    """
    if not any(map(pipelines.has_outside_state, slice_bounds.list_pipeline(dataset))):
        return dataset
    last_stage = pipelines.skip_options(dataset)
    ahead_count = count_ahead(dataset)
    if pipelines.name_kind(last_stage) == "PrefetchDataset":
        dataset = last_stage._input_dataset.with_options(dataset.options())  # without the `prefetch` of the script
    return dataset.prefetch(ahead_count) if ahead_count else dataset


def count_ahead(dataset: Any) -> int:
    """The number of elements that the script alone reads ahead at the end of a pipeline; 1 if TensorFlow chooses."""
    last_stage = pipelines.skip_options(dataset)
    if pipelines.name_kind(last_stage) == "PrefetchDataset":
        ahead_count = int(last_stage._buffer_size)
    else:
        ahead_count = tf.data.AUTOTUNE if _is_prefetch_added(last_stage, dataset.options()) else 0
    return 1 if ahead_count == tf.data.AUTOTUNE else ahead_count


def _is_prefetch_added(last_stage: Any, options: Any) -> bool:
    """Whether TensorFlow adds a `prefetch` after `last_stage`, the last stage of a pipeline."""
    is_off = options.autotune.enabled is False or options.experimental_optimization.inject_prefetch is False
    return not is_off and not pipelines.name_kind(last_stage).startswith("Parallel")
