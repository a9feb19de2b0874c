"""Iteration over a `tf.data.Dataset`: what a training loop gets of each batch is this rank's slice.

In eager code an iterator carries a `Loop`, which decides. A loop inside a `tf.function` is decided when it is traced: its
batches are slices if its body reduces a gradient.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from matex_tf import graphs, loops, output, pipeline, settings, sharding, steps, variables, world
from matex_tf.patches import replace


def install() -> None:
    from tensorflow.python.autograph.operators import control_flow
    from tensorflow.python.data.ops import dataset_autograph, dataset_ops, iterator_ops

    replace(dataset_ops.DatasetV2, "__iter__", _iterate)
    replace(iterator_ops.OwnedIterator, "__next__", _next)
    replace(iterator_ops.OwnedIterator, "get_next", _get_next)
    replace(dataset_ops.DatasetV2, "batch", _batch)
    replace(dataset_ops.DatasetV2, "from_tensor_slices", _from_tensor_slices)
    _replace_autograph_loop(control_flow, dataset_autograph, dataset_ops)


def _iterate(original: Any) -> Any:
    def __iter__(self):
        import tensorflow as tf

        iterator = original(self)
        if tf.executing_eagerly() and pipeline.yields_batches_to_slice(self):
            own = weakref.ref(iterator)
            loop = loops.Loop(sharding.is_share(self), pull=lambda: own()._next_internal())
            iterator._matex_loop = loop
            weakref.finalize(iterator, loop.close).atexit = False
        return iterator

    return __iter__


def _next(original: Any) -> Any:
    def __next__(self):
        import tensorflow as tf

        loop = getattr(self, "_matex_loop", None)
        if loop is None or not tf.executing_eagerly():
            return original(self)
        try:
            element = original(self)
        except StopIteration:
            more = loop.end()
            if more is None:
                raise
            return more
        return loop.give(element)

    return __next__


def _get_next(original: Any) -> Any:
    def get_next(self):
        import tensorflow as tf

        loop = getattr(self, "_matex_loop", None)
        if loop is None or not tf.executing_eagerly():
            return original(self)
        return loop.give(original(self))

    return get_next


def _from_tensor_slices(original: Any) -> Any:
    def from_tensor_slices(tensors, *args, **kwargs):
        import tensorflow as tf

        dataset = original(tensors, *args, **kwargs)
        if any(sharding.is_share(part) for part in tf.nest.flatten(tensors) if isinstance(part, np.ndarray)):
            sharding.mark_share(dataset)
        return dataset

    return from_tensor_slices


def _batch(original: Any) -> Any:
    def batch(self, batch_size, *args, **kwargs):
        # The script's batch is that of all ranks; of a share each rank takes its part of it.
        if world.is_active() and settings.current().scaling == "strong" and sharding.is_share(self):
            me = world.current()
            start, stop = sharding.rows_of(int(batch_size), me.rank, me.size)
            batch_size = max(stop - start, 1)
        return original(self, batch_size, *args, **kwargs)

    return batch


def _replace_autograph_loop(control_flow: Any, dataset_autograph: Any, dataset_ops: Any) -> None:
    replace(dataset_autograph, "_tf_ag_dataset_for_stmt", _loop_in_function)
    registry = control_flow.for_loop_registry._registry
    registry[dataset_ops.DatasetV2] = dataset_autograph._tf_ag_dataset_for_stmt


def _loop_in_function(original: Any) -> Any:
    def _tf_ag_dataset_for_stmt(ds, extra_test, body, get_state, set_state, symbol_names, opts):
        known = pipeline.argument_behind(ds)
        if not pipeline.yields_batches_to_slice(known) or sharding.is_share(known):
            return original(ds, extra_test, body, get_state, set_state, symbol_names, opts)
        import tensorflow as tf

        if settings.current().scaling == "weak":
            output.note("a loop inside a tf.function shares out each batch; weak scaling is for fit and eager loops")
        # Read when the loop runs, written once its body is traced.
        trains = steps.hidden_variable(False, tf.bool, "matex_tf_loop_trains")
        graphs.keep(trains)
        reduces = []

        def body_on_slice(element):
            mine = _slice_if(trains.read_value(), element)
            body(mine)
            reduces.append(graphs.reduces(tf.compat.v1.get_default_graph()))

        begun = tf.py_function(_begin, [trains.read_value()], tf.bool)
        with tf.control_dependencies([begun]):
            original(ds, extra_test, body_on_slice, get_state, set_state, symbol_names, opts)
        steps.variable().assign(steps.whole_values())
        if any(reduces):
            with tf.init_scope():
                trains.assign(True)

    return _tf_ag_dataset_for_stmt


def _slice_if(slicing: Any, element: Any) -> Any:
    """In a graph: this rank's rows of a batch where the scalar bool `slicing` is true, else all of them."""
    import tensorflow as tf

    me = world.current()
    count = sharding.batch_rows(element)
    start, stop, has_rows = sharding.slice_bounds(count, me.rank, me.size)
    numbers = tf.where(slicing, steps.slice_tensor(has_rows, start, stop, count),
                       tf.constant(steps.whole_values(), tf.float64))
    start, stop = tf.where(slicing, start, tf.zeros_like(start)), tf.where(slicing, stop, count)
    with tf.control_dependencies([steps.variable().assign(numbers)]):
        return pipeline.take_rows(element, start, stop)


def _begin(trains: Any) -> bool:
    """Before a training loop in a function runs: the variables it trains are the same on all ranks."""
    if bool(trains):
        variables.settle()
    return True
