"""Iterators of whole batches over an iterator of slices, for code of the script that takes batches itself."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from matex_tf.input import tickets
from matex_tf.lazy import tf
from matex_tf.own_functions import trace_own


class WholeIterators:
    """Makes the datasets of such iterators for a `shared_batches.Source`."""

    def __init__(self, source: Any):
        self._source = source

    def make_dataset(self, slices: Any) -> Any:
        """The dataset of whole batches, from the remaining elements of `slices`, an iterator of slices.

        Keras makes two of its iterators for each epoch, and uses few. An iterator costs milliseconds, because
        TensorFlow prepares the functions of maps for it. But an iterator of `empty.concatenate(dataset)` prepares the
        functions of `dataset` only when its first element is taken.
        """
        from tensorflow.python.data.ops import dataset_ops

        function, (dtypes, shapes) = self._whole_function, zip(*self._source.batch_specs)
        specs = {"output_types": dtypes, "output_shapes": shapes}
        variant = tf.raw_ops.MapDataset(
            input_dataset=self._numbers._variant_tensor,
            other_arguments=[slices._iterator_resource, *function.captured_inputs],
            f=function,
            preserve_cardinality=False,
            **specs,
        )
        empty = tf.raw_ops.TakeDataset(input_dataset=variant, count=tf.constant(0, tf.int64), **specs)
        variant = tf.raw_ops.ConcatenateDataset(input_dataset=empty, another_dataset=variant, **specs)
        return dataset_ops._VariantDataset(variant, self._source.spec)

    @functools.cached_property
    def _numbers(self) -> Any:
        """An endless dataset, with the options of the datasets of whole batches."""
        options = tf.data.Options()  # no reading ahead, which would take batches away from steps
        options.autotune.enabled = options.experimental_optimization.apply_default_optimizations = False
        with tf.init_scope():
            return tf.data.Dataset.range(np.iinfo(np.int64).max).with_options(options)

    @functools.cached_property
    def _whole_function(self) -> Any:
        """A ConcreteFunction of a number, unused, and the handle of an iterator of slices: its next batch, whole."""

        def take_whole(number: Any, handle: Any) -> list[Any]:
            element = tickets.take_next(handle, self._source.specs)
            whole_batch = tf.py_function(self._make_whole, element, [dtype for dtype, _ in self._source.batch_specs])
            whole_batch = whole_batch if isinstance(whole_batch, list) else [whole_batch]
            for tensor, (_, shape) in zip(whole_batch, self._source.batch_specs):
                tensor.set_shape(shape)
            return whole_batch

        with tf.init_scope():
            specs = tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.resource)
            return trace_own(take_whole, *specs)

    def _make_whole(self, *element: Any) -> list[Any]:
        """A whole batch from an element of the iterator, in eager code: so `_whole_function` is fast to create."""
        self._source.work_whole()
        return self._source.open(element).take_whole()
