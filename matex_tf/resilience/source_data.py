"""Advances the data of `fit` to a saved position, by taking batches as training took them. `data_hooks` calls it.

A source is Keras' object that gives `fit` its batches: an `EpochIterator` (Keras 3) or a `DataHandler` (Keras 2).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.graph_ops import iterate_nodes
from matex_tf.sharding import slice_bounds
from matex_tf.steps import own_data

_CALLS_PYTHON = ("PyFunc", "EagerPyFunc", "PyFuncStateless")


def is_made_by_python(x: Any) -> bool:
    """Whether the script's Python code makes the batches. Such code may continue across epochs."""
    if not hasattr(x, "element_spec"):
        return hasattr(x, "__next__") or hasattr(x, "on_epoch_end")
    for dataset in slice_bounds.list_pipeline(x):
        for attribute in vars(dataset).values():
            graph = getattr(getattr(attribute, "function", None), "graph", None)
            if graph is not None and any(node.op in _CALLS_PYTHON for node in iterate_nodes(graph)):
                return True
    return False


def has_length(source: Any) -> bool:
    """Whether the number of steps in an epoch of the source is known.

    At the end of an epoch's data, Keras 3 infers a number of steps that is 1 too large. So the data adapter's number of
    batches is used instead.
    """
    adapter = getattr(source, "data_adapter", None)
    batch_count = getattr(source, "_inferred_steps", None) if adapter is None else adapter.num_batches
    return bool(batch_count or getattr(source, "steps_per_epoch", None))


def has_position(source: Any, calls_python: bool) -> bool:
    """Whether the position of the data depends on the batches taken, and not only on the epochs begun.

    It does if Python code makes the batches, if only the batches show the end of an epoch, or if an epoch continues the
    iterator of the epoch before.
    """
    if calls_python or not has_length(source):
        return True
    if hasattr(source, "enumerate_epochs"):  # Keras 2
        return not source._adapter.should_recreate_iterator()
    return source.steps_per_epoch is not None  # Keras 3: the epochs then share one iterator


def take_batches(iterator: Any, count: int) -> list[Any]:
    """The next `count` batches, or fewer at the end of the data. Raises OutOfRangeError if there is none."""
    # If each rank has rows of its own (`own_data`), a rank cannot tell when the data of other ranks end. So `get_next`
    # gathers the rows of all ranks. For all other batches a rank needs no other rank.
    with contextlib.nullcontext() if own_data.is_own(iterator) else own_data.compute_alone():
        batches = [iterator.get_next()]
        try:
            while len(batches) < count:
                batches.append(iterator.get_next())
        except tf.errors.OutOfRangeError:
            return batches
    return batches


def make_iterator(batches: Iterable[Any], spec: Any) -> Any:
    """An iterator over `batches` with the static shapes of `spec`, so that a function traced for `spec` accepts it."""

    def widen_shapes(*parts: Any) -> Any:
        """The tensors of a batch, with the static shapes of `spec` in place of their own."""
        widened_parts = [
            tf.compat.v1.placeholder_with_default(part, part_spec.shape) if isinstance(part, tf.Tensor) else part
            for part, part_spec in zip(tf.nest.flatten(parts), tf.nest.flatten(spec))
        ]
        return tf.nest.pack_sequence_as(spec, widened_parts)

    dataset, *further_datasets = (tf.data.Dataset.from_tensors(batch).map(widen_shapes) for batch in batches)
    for further_dataset in further_datasets:
        dataset = dataset.concatenate(further_dataset)
    return iter(dataset)
