"""`tf.data` over each rank's own rows: what is made of marked arrays is marked; eager code is given whole batches."""

from __future__ import annotations

from typing import Any

import numpy as np

from matex_tf import settings
from matex_tf.input import whole_batches
from matex_tf.runtime.hooks import Table
from matex_tf.sharding import row_shares, share_arrays, share_batches
from matex_tf.steps import agreement, batches, events, own_data, weak_scaling
from matex_tf.world import world

HOOKS = Table()

_DATASETS, _ITERATORS = "tensorflow.python.data.ops.dataset_ops", "tensorflow.python.data.ops.iterator_ops"
_LOST = "a dataset of each rank's own rows gives each rank other batches"


@HOOKS.replace(_DATASETS, "DatasetV2.__iter__", _LOST)
def _wrap_iter(original: Any) -> Any:
    def __iter__(self):
        import tensorflow as tf

        if tf.executing_eagerly():
            share_batches.prepare_epoch(self)
        iterator = original(self)
        own_data.note_iterator(iterator, self)
        if tf.executing_eagerly() and _raises_events():
            events.pass_begins(self, iterator)
        return iterator

    return __iter__


@HOOKS.replace(_ITERATORS, "OwnedIterator._next_internal", _LOST)
def _wrap_next(original: Any) -> Any:
    def take_next(self):
        import tensorflow as tf

        if not tf.executing_eagerly():
            own_data.require_shared(self)
            return original(self)
        if own_data.is_alone():
            return original(self)
        if not _raises_events():
            return take(self)
        events.batch_wanted(self)
        is_over = True
        try:
            batch = take(self)
            is_over = False
            return batch
        finally:
            events.batch_given(self, is_over)

    def take(self):
        if own_data.is_own(self):
            return own_data.take_whole(self)
        shares = batches.find_shares(self)
        pull = lambda: original(self) if shares is None else whole_batches.take_whole(shares)  # noqa: E731
        return weak_scaling.take_next(self, pull) if weak_scaling.is_on() else pull()

    return take_next


def _raises_events() -> bool:
    """What other threads do is at other places on each rank."""
    return agreement.is_watched() and not own_data.is_alone()


@HOOKS.replace(_ITERATORS, "OwnedIterator.get_next_as_optional", _LOST)
def _wrap_optional(original: Any) -> Any:
    def take_optional(self):
        import tensorflow as tf

        if not tf.executing_eagerly():
            own_data.require_shared(self)
        shares = batches.find_shares(self)
        if not tf.executing_eagerly() or own_data.is_alone() or not (own_data.is_own(self) or shares):
            return original(self)
        try:
            whole = own_data.take_whole(self) if shares is None else whole_batches.take_whole(shares)
            return tf.experimental.Optional.from_value(whole)
        except tf.errors.OutOfRangeError:
            return tf.experimental.Optional.empty(self.element_spec)

    return take_optional


@HOOKS.replace(_DATASETS, "DatasetV1._make_one_shot_iterator DatasetV1._make_initializable_iterator", _LOST)
def _wrap_make_iterator(original: Any) -> Any:
    def make(self, *args, **kwargs):
        import tensorflow as tf

        if not tf.executing_eagerly():
            own_data.refuse_in_session(self)
        iterator = original(self, *args, **kwargs)
        own_data.note_iterator(iterator, self)
        return iterator

    return make


@HOOKS.replace(_ITERATORS, "Iterator.make_initializer", _LOST)
def _wrap_make_initializer(original: Any) -> Any:
    def make_initializer(self, dataset, *args, **kwargs):
        own_data.refuse_in_session(dataset)
        return original(self, dataset, *args, **kwargs)

    return make_initializer


@HOOKS.replace("tensorflow.python.framework.constant_op", "_constant_impl", _LOST)
def _wrap_constant(original: Any) -> Any:
    def _constant_impl(value, *args, **kwargs):
        if isinstance(value, np.ndarray):
            own_data.note_constant(value)
        return original(value, *args, **kwargs)

    return _constant_impl


@HOOKS.replace(_DATASETS, "DatasetV2.from_tensor_slices DatasetV2.from_tensors", _LOST)
def _wrap_from_tensors(original: Any) -> Any:
    def make(tensors, *args, **kwargs):
        import tensorflow as tf

        arrays = [part for part in tf.nest.flatten(tensors) if isinstance(part, np.ndarray)]
        if not any(map(share_arrays.is_share, arrays)):
            return original(tensors, *args, **kwargs)
        with share_arrays.keeps_rows.set(True):
            return share_arrays.mark_share(original(tensors, *args, **kwargs))

    return make


@HOOKS.replace(_DATASETS, "DatasetV2.batch", _LOST)
def _wrap_batch(original: Any) -> Any:
    def batch(self, batch_size, *args, **kwargs):
        # The script's batch is that of all ranks; of a share each rank takes its part of it.
        if world.is_active() and settings.get_settings().scaling == "strong" and share_arrays.is_share(self):
            me = world.get_world()
            start, stop = row_shares.deal_block(int(batch_size), me.rank, me.trainers)
            batch_size = max(stop - start, 1)
        return original(self, batch_size, *args, **kwargs)

    return batch
