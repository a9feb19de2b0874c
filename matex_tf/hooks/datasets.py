"""Hooks on datasets and their iterators, in eager code and in traces of steps.

`_wrap_iter` chooses how ranks share the batches of a new iterator. Eager code gets whole batches in any case.

A dataset may hold this rank's own rows only (`matex_tf.shard`). It is marked, and a step that takes its batches is
traced for any number of rows, because ranks may have different numbers.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from matex_tf import ops, settings
from matex_tf.input import filled_caches, passes, pipelines, shared_batches, tickets, turns, whole_batches
from matex_tf.lazy import tf
from matex_tf.rewrite import graph_ops
from matex_tf.runtime.hooks import Table
from matex_tf.runtime.loop_hooks import put_loop
from matex_tf.sharding import shard_arrays, slice_bounds
from matex_tf.steps import agreement, batches, capture, events, own_arrays, own_data, weak_scaling
from matex_tf.world import world

HOOKS = Table()

_DATA = "tensorflow.python.data.ops"
_DATASETS, _ITERATORS = f"{_DATA}.dataset_ops", f"{_DATA}.iterator_ops"
_IF_HOOK_MISSING = "a dataset of each rank's own rows gives each rank other batches"


@HOOKS.replace(_DATASETS, "DatasetV2.__iter__", "ranks may train different batches")
def _wrap_iter(original: Any) -> Any:
    """Choose how the ranks share the batches of a new iterator, and raise the event of the pass over the dataset."""

    def __iter__(self):
        is_eager = tf.executing_eagerly()
        if is_eager:
            own_arrays.prepare_epoch(self)
        # The iterator returns batches
        # - by turns, in eager code only;
        # - by tickets. In a trace these are batches of `ticket_source.whole`, the whole batches made from tickets, and
        #   `steps.shared_feeds` replaces the iterator in the copy of the step;
        # - of the dataset itself, if ranks share none: in other threads, where ranks are not in step, or if the rows
        #   are the rank's own.
        may_share = agreement.is_watched() and not shard_arrays.is_shard(self)
        turn_source = turns.find_source(self) if may_share and is_eager else None
        ticket_source = shared_batches.find_source(self) if may_share and turn_source is None else None
        if turn_source is not None:
            iterator = turn_source.iterate(original)
        elif ticket_source is not None and is_eager:
            iterator = ticket_source.iterate(original)
        else:
            dataset = filled_caches.use_filled_caches(self) if may_share and ticket_source is None else self
            if is_eager:
                # All ranks read equally far ahead. Otherwise a generator would be at different elements on the ranks,
                # and a later iteration would begin there.
                iterator = original(pipelines.read_alike(dataset))
            else:
                with tf.control_dependencies(_list_effects()):
                    iterator = original(dataset if ticket_source is None else ticket_source.whole)
        own_data.note_iterator(iterator, self)  # which may be of another dataset than `self`
        if is_eager and agreement.is_watched():
            events.pass_begins(self, iterator)
        return iterator

    return __iter__


def _list_effects() -> list[Any]:
    """The ops with effects in the graph that is being traced. A new iterator there waits for them.

    This is because a shuffled dataset draws a seed for each iterator. TensorFlow orders ops by the resources that they
    share, and two iterators of one dataset share none.
    """
    return [op for op in tf.compat.v1.get_default_graph().get_operations() if graph_ops.is_stateful(op.type)]


@HOOKS.replace(_ITERATORS, "OwnedIterator._create_iterator", _IF_HOOK_MISSING)
def _wrap_create(original: Any) -> Any:
    """Mark an iterator over a rank's own rows, also one of `tf.compat.v1.data.make_one_shot_iterator`.

    A dropped iterator ends in another thread, because its end can take a minute (ops/src/tensorflow/let_go.cc).
    """

    def create_iterator(self, dataset):
        original(self, dataset)
        own_data.note_iterator(self, dataset)
        if world.is_active() and tf.executing_eagerly():
            weakref.finalize(self, ops.let_go, self._iterator_resource).atexit = False

    return create_iterator


def _take_in_trace(iterator: Any, take: Callable[[Any], Any]) -> Any:
    """The result of `take(iterator)` in a trace. Batches of each rank's own rows are traced for any number of rows."""
    from tensorflow.python.data.util import structure

    own_data.require_shared(iterator)  # an error for own rows, unless a step that ranks share is traced (`tracing`)
    if not capture.tracing.is_on or not own_data.is_own(iterator):
        return take(iterator)
    capture.tracing.has_opened = True  # an error in this trace may not be the script's
    spec, shapes = iterator._element_spec, iterator._flat_output_shapes
    iterator._element_spec = capture.open_spec(spec)
    iterator._flat_output_shapes = structure.get_flat_tensor_shapes(iterator._element_spec)
    try:
        return take(iterator)
    finally:
        iterator._element_spec, iterator._flat_output_shapes = spec, shapes


@HOOKS.replace(f"{_DATA}.dataset_autograph", "_tf_ag_dataset_for_stmt", _IF_HOOK_MISSING, put=put_loop)
def _wrap_dataset_loop(original: Any) -> Any:
    from tensorflow.python.autograph.operators import control_flow

    def _tf_ag_dataset_for_stmt(ds, *args, **kwargs):
        if not capture.tracing.is_on:
            own_data.require_shared(ds)
            return original(ds, *args, **kwargs)
        # A step that ranks share is traced. Its loop uses an iterator, whose batches they can share (`_wrap_iter`).
        return control_flow._tf_iterator_for_stmt(iter(ds), *args, **kwargs)

    return _tf_ag_dataset_for_stmt


@HOOKS.replace(_ITERATORS, "OwnedIterator._next_internal", _IF_HOOK_MISSING)
def _wrap_next(original: Any) -> Any:
    def pull(self):
        source = batches.find_shared_batches(self)
        if isinstance(source, passes.Pass):  # one pass over a source by turns, which ranks take in their main threads
            return passes.take_element(source) if agreement.is_watched() else original(self)
        return original(self) if source is None else whole_batches.take_whole(source)

    def take(self):
        if own_data.is_own(self):
            return own_data.take_whole(self)
        # With weak scaling, a step that trains takes several batches of the script, one for each rank. Ranks share no
        # step of another thread.
        is_weak = weak_scaling.is_on() and agreement.is_watched()
        return weak_scaling.take_next(self, lambda: pull(self)) if is_weak else pull(self)

    def take_next(self):
        if not tf.executing_eagerly():
            return _take_in_trace(self, original)
        if own_data.is_alone():
            return original(self)
        if not agreement.is_watched():  # other threads are not in step between ranks
            return take(self)
        events.batch_wanted(self)
        is_over = True
        try:
            batch = take(self)
            is_over = False
            return batch
        finally:
            events.batch_given(self, is_over)

    return take_next


@HOOKS.replace(_ITERATORS, "OwnedIterator.get_next_as_optional", _IF_HOOK_MISSING)
def _wrap_optional(original: Any) -> Any:
    def take_optional(self):
        if not tf.executing_eagerly():
            return _take_in_trace(self, original)
        try:
            value = self._next_internal()
        except tf.errors.OutOfRangeError:
            return tf.experimental.Optional.empty(self.element_spec)
        with tf.device(self._iterator_resource.device):
            return _make_optional(self.element_spec, value)

    return take_optional


def _make_optional(spec: Any, value: Any) -> Any:
    """An optional with `value`. It has the `spec` of its iterator, if possible: functions are traced for the spec."""
    from tensorflow.python.data.ops import optional_ops
    from tensorflow.python.data.util import structure

    try:
        components = structure.to_tensor_list(spec, value)
    except ValueError:  # of a fixed number of rows: `value` has the rows of several batches
        return tf.experimental.Optional.from_value(value)
    return optional_ops._OptionalImpl(tf.raw_ops.OptionalFromValue(components=components), spec)


@HOOKS.replace(_ITERATORS, "Iterator.make_initializer", _IF_HOOK_MISSING)
def _wrap_make_initializer(original: Any) -> Any:
    """Refuse own rows in an iterator of `tf.compat.v1.data.Iterator.from_structure`, which has no mark."""

    def make_initializer(self, dataset, *args, **kwargs):
        if shard_arrays.is_shard(dataset):
            shard_arrays.refuse_dataset("initializes an iterator of tf.compat.v1")
        return original(self, dataset, *args, **kwargs)

    return make_initializer


@HOOKS.replace("tensorflow.python.ops.gen_dataset_ops", "shuffle_dataset_v3", "tickets have an order of their own")
def _wrap_shuffle(original: Any) -> Any:
    """Give the script's dataset and its tickets one seed generator. It counts iterations: each has another order."""

    def shuffle_dataset_v3(input_dataset, buffer_size, seed, seed2, seed_generator, *args, **kwargs):
        if not tf.executing_eagerly():
            return original(input_dataset, buffer_size, seed, seed2, seed_generator, *args, **kwargs)
        is_reshuffled = kwargs.get("reshuffle_each_iteration") is not False
        generator = tf.raw_ops.AnonymousSeedGenerator(seed=seed, seed2=seed2, reshuffle=is_reshuffled)
        variant = original(input_dataset, buffer_size, seed, seed2, generator.handle, *args, **kwargs)
        tickets.note_generator(variant, generator)
        return variant

    return shuffle_dataset_v3


@HOOKS.replace("tensorflow.python.framework.constant_op", "_constant_impl", _IF_HOOK_MISSING)
def _wrap_constant(original: Any) -> Any:
    """Warn, or refuse, if a tensor is made of a rank's own rows: unlike the array, the tensor has no mark."""

    def _constant_impl(value, *args, **kwargs):
        if isinstance(value, np.ndarray):
            own_data.note_constant(value)
        return original(value, *args, **kwargs)

    return _constant_impl


@HOOKS.replace(_DATASETS, "DatasetV2.from_tensor_slices DatasetV2.from_tensors", _IF_HOOK_MISSING)
def _wrap_from_tensors(original: Any) -> Any:
    def from_tensors(tensors, *args, **kwargs):
        arrays = [component for component in tf.nest.flatten(tensors) if isinstance(component, np.ndarray)]
        if not any(map(shard_arrays.is_shard, arrays)):
            return original(tensors, *args, **kwargs)
        with shard_arrays.keeps_rows.set(True):  # the dataset has the mark that its tensors lose
            return shard_arrays.mark_share(original(tensors, *args, **kwargs))

    return from_tensors


@HOOKS.replace(_DATASETS, "DatasetV2.batch DatasetV2.padded_batch DatasetV2.rebatch", _IF_HOOK_MISSING)
def _wrap_batch(original: Any) -> Any:
    def count_rows(rows: Any) -> int:
        me = world.get_world()
        start, stop = slice_bounds.deal_block(int(rows), me.rank, me.trainers)
        return max(stop - start, 1)

    def batch(self, batch_size, *args, **kwargs):
        # The script's batch size counts the rows of all ranks. A dataset of own rows gets this rank's part of it.
        if world.is_active() and settings.get_settings().scaling == "strong" and shard_arrays.is_shard(self):
            batch_size = np.vectorize(count_rows, otypes=[int])(batch_size).tolist()  # `rebatch` also takes a vector
        return original(self, batch_size, *args, **kwargs)

    return batch
