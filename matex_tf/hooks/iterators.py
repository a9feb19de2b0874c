"""Iterators: ranks read equally far ahead, and a step is traced for batches of any number of a rank's own rows."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

from matex_tf import ops
from matex_tf.input import own_shares
from matex_tf.runtime.hooks import Table
from matex_tf.runtime.loop_hooks import put_loop
from matex_tf.sharding import iteration, share_arrays
from matex_tf.steps import agreement, capture, own_data
from matex_tf.world import world

HOOKS = Table()

_LOST = "each rank computes whole batches of iterators that a tf.function takes them from"


@HOOKS.replace("tensorflow.python.data.ops.dataset_ops", "DatasetV2.__iter__", "ranks may train different batches")
def _wrap_iter(original: Any) -> Any:
    """What a generator has given does not come again: after other amounts of reading ahead ranks train other rows."""

    def __iter__(self):
        import tensorflow as tf

        source = own_shares.find_source(self) if agreement.is_watched() and not share_arrays.is_share(self) else None
        if not tf.executing_eagerly():
            return original(self if source is None else source.whole)
        return original(iteration.read_alike(self)) if source is None else source.iterate(original)

    return __iter__


@HOOKS.replace("tensorflow.python.data.ops.iterator_ops", "OwnedIterator._next_internal", _LOST)
@HOOKS.replace("tensorflow.python.data.ops.iterator_ops", "OwnedIterator.get_next_as_optional", _LOST)
def _wrap_next(original: Any) -> Any:
    def take_next(self):
        if not capture.is_tracing() or not own_data.is_own(self):
            return original(self)
        with _open_rows(self):
            return original(self)

    return take_next


@HOOKS.replace(
    "tensorflow.python.data.ops.iterator_ops",
    "OwnedIterator._create_iterator",
    "the end of an iterator may block a rank",
    optional=True,
)
def _wrap_create(original: Any) -> Any:
    """An iterator that is dropped ends in another thread: its end can take a minute (ops/src/tensorflow/let_go.cc)."""

    def create_iterator(self, dataset):
        import tensorflow as tf

        original(self, dataset)
        if world.is_active() and tf.executing_eagerly():
            weakref.finalize(self, ops.let_go, self._iterator_resource).atexit = False

    return create_iterator


@contextlib.contextmanager
def _open_rows(iterator: Any) -> Iterator[None]:
    from tensorflow.python.data.util import structure

    capture.note_opened()
    names = ("_element_spec", "_flat_output_shapes")
    before = {name: getattr(iterator, name) for name in names}
    iterator._element_spec = capture.open_spec(iterator._element_spec)
    iterator._flat_output_shapes = structure.get_flat_tensor_shapes(iterator._element_spec)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(iterator, name, value)


@HOOKS.replace("tensorflow.python.data.ops.dataset_autograph", "_tf_ag_dataset_for_stmt", _LOST, put=put_loop)
def _wrap_dataset_loop(original: Any) -> Any:
    from tensorflow.python.autograph.operators import control_flow

    def _tf_ag_dataset_for_stmt(ds, *args, **kwargs):
        if not capture.is_tracing():
            own_data.require_shared(ds)
            return original(ds, *args, **kwargs)
        return control_flow._tf_iterator_for_stmt(iter(ds), *args, **kwargs)

    return _tf_ag_dataset_for_stmt
