"""Iteration over a `tf.data.Dataset` by a loop of the script's own.

In eager code an iterator has a `Loop`, which decides. What happens inside a `tf.function` is in `function_loop`.
An iterator that is dropped is destroyed in another thread, since its end can take long (ops/src/tensorflow/let_go.cc).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from matex_tf import ops, settings
from matex_tf.keras import fit_call
from matex_tf.loops import dataset_loop
from matex_tf.observe import bottlenecks, epochs
from matex_tf.patches.tf import function_loop
from matex_tf.runtime.hooks import Table
from matex_tf.sharding import iteration, row_shares, share_arrays, share_batches, sliced_dataset
from matex_tf.world import world

HOOKS = Table()

_LOST = "a loop of the script over a dataset is not sharded"


@HOOKS.replace("tensorflow.python.data.ops.dataset_ops", "DatasetV2.__iter__", _LOST)
def _wrap_iter(original: Any) -> Any:
    def __iter__(self):
        import tensorflow as tf

        if tf.executing_eagerly() and world.is_active():
            self = iteration.find_replacement(self)
            share_batches.prepare_epoch(self)
        iterator = original(self)
        if tf.executing_eagerly() and sliced_dataset.has_batches_to_slice(self):
            own: Callable[[], Any] = weakref.ref(iterator)
            fixed = sliced_dataset.has_fixed_rows(self)
            loop = dataset_loop.Loop(
                share_arrays.is_share(self), lambda: own()._next_internal(), self.element_spec, fixed,
                epochs.make_counter(self, share_arrays.is_share(self)),
            )  # fmt: skip
            dataset_loop.note_loop(iterator, loop)
            weakref.finalize(iterator, loop.close_loop).atexit = False
        return iterator

    return __iter__


@HOOKS.replace(
    "tensorflow.python.data.ops.iterator_ops",
    "OwnedIterator._create_iterator",
    "the end of an iterator may block a rank",
    optional=True,
)
def _wrap_create_iterator(original: Any) -> Any:
    def create_iterator(self, dataset):
        import tensorflow as tf

        original(self, dataset)
        if world.is_active() and tf.executing_eagerly():
            weakref.finalize(self, ops.let_go, self._iterator_resource).atexit = False

    return create_iterator


@HOOKS.replace("tensorflow.python.data.ops.iterator_ops", "OwnedIterator.__next__", _LOST)
def _wrap_next(original: Any) -> Any:
    def __next__(self):
        import tensorflow as tf

        if not tf.executing_eagerly():
            return _take_next_in_function(self, original)
        loop = dataset_loop.find_loop(self)
        if loop is None:
            return original(self)
        try:
            element = bottlenecks.time_pull(lambda: original(self))
        except StopIteration:
            more = loop.end_epoch()
            if more is None:
                raise
            return more
        return loop.give_batch(element)

    return __next__


def _take_next_in_function(iterator: Any, original: Any) -> Any:
    call = fit_call.get_current()
    stage = None if call is None else call.training
    waits = stage is not None and (stage.whole_pipeline is not None or stage.shares is not None)
    element = bottlenecks.time_pull(lambda: original(iterator)) if waits else original(iterator)
    return function_loop.take_next(iterator, element)


@HOOKS.replace("tensorflow.python.data.ops.iterator_ops", "OwnedIterator.get_next", _LOST)
def _wrap_get_next(original: Any) -> Any:
    def get_next(self):
        import tensorflow as tf

        if not tf.executing_eagerly():
            return _take_next_in_function(self, original)
        loop = dataset_loop.find_loop(self)
        return original(self) if loop is None else loop.give_batch(original(self))

    return get_next


@HOOKS.replace(
    "tensorflow.python.data.ops.dataset_ops",
    "DatasetV2.from_tensor_slices",
    "a share is taken for the same data on all ranks",
)
def _wrap_from_tensor_slices(original: Any) -> Any:
    def from_tensor_slices(tensors, *args, **kwargs):
        import tensorflow as tf

        dataset = original(tensors, *args, **kwargs)
        if any(share_arrays.is_share(part) for part in tf.nest.flatten(tensors) if isinstance(part, np.ndarray)):
            share_arrays.mark_share(dataset)
        return dataset

    return from_tensor_slices


@HOOKS.replace(
    "tensorflow.python.data.ops.dataset_ops", "DatasetV2.batch", "batches of a share are not those of the script"
)
def _wrap_batch(original: Any) -> Any:
    def batch(self, batch_size, *args, **kwargs):
        # The script's batch is that of all ranks; of a share each rank takes its part of it.
        if world.is_active() and settings.get_settings().scaling == "strong" and share_arrays.is_share(self):
            me = world.get_world()
            start, stop = row_shares.deal_block(int(batch_size), me.rank, me.trainers)
            batch_size = max(stop - start, 1)
        return original(self, batch_size, *args, **kwargs)

    return batch
