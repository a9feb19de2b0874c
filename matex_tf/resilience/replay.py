"""Iterators that can return to an earlier position, for steps that take batches inside their function.

In an elastic run such a step gets a `Replay` in place of its iterator. The `Replay` records the elements that the step
takes, and gives the same elements again if the step is undone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from matex_tf import tags
from matex_tf.lazy import tf

_REPLAY = "its batches are given again"  # the tag under which an iterator has its `Replay`


def find_replay(iterator: Any) -> Replay:
    return tags.get_or_make_tag(iterator, _REPLAY, lambda: Replay(iterator))


class Replay:
    """An iterator over the further elements of `iterator`, an eager iterator of a `tf.data.Dataset`.

    `go_back` returns to the position of the last call of `keep`. Elements since then are in `_elements`: `_take_next`
    gives these first, then takes further ones from `iterator`.
    """

    def __init__(self, iterator: Any):
        from tensorflow.python.data.util import structure

        spec = iterator.element_spec
        self.source = iterator._iterator_resource
        self._dtypes = structure.get_flat_tensor_types(spec)
        self._shapes = structure.get_flat_tensor_shapes(spec)
        self._elements: list[list[Any]] = []  # the recorded elements, as flat tensors
        self._next = 0  # the index of the next element among them

        def take_element(_: Any) -> Any:
            exists, *parts = tf.py_function(self._take_next, [], [tf.bool, *self._dtypes])
            return tf.ensure_shape(exists, []), tuple(parts)

        # After `take_while`: the unused tensors at the end of the data have other shapes.
        def set_shapes(_: Any, parts: Any) -> Any:
            return tuple(map(tf.ensure_shape, parts, self._shapes))

        # An element that tf.data takes in advance would count as taken by the step. So optimizations are off.
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        options.experimental_optimization.inject_prefetch = False
        elements = tf.data.Dataset.range(np.iinfo(np.int64).max).map(take_element).take_while(lambda exists, _: exists)
        self._dataset = elements.map(set_shapes).with_options(options)
        self._iterator = iter(self._dataset)

    @property
    def handle(self) -> Any:
        """The iterator resource that a step takes instead of the original one."""
        return self._iterator._iterator_resource

    def keep(self) -> None:
        """Forget the elements taken so far: `go_back` returns to this position."""
        self._elements, self._next = self._elements[self._next :], 0

    def go_back(self) -> None:
        """Return to the position of the last `keep`."""
        self._next, self._iterator = 0, iter(self._dataset)

    def _take_next(self) -> list[Any]:
        """A flag tensor, whether there is a next element, and the flat tensors of the element (unused if not)."""
        if self._next == len(self._elements):
            try:
                parts = tf.raw_ops.IteratorGetNext(
                    iterator=self.source, output_types=self._dtypes, output_shapes=self._shapes
                )
            except tf.errors.OutOfRangeError:
                return [tf.constant(False), *map(_make_unused, self._dtypes)]
            self._elements.append(list(parts))
        self._next += 1
        return [tf.constant(True), *self._elements[self._next - 1]]


def _make_unused(dtype: Any) -> Any:
    """A placeholder tensor of this dtype; its value is not used."""
    if dtype == tf.variant:
        return tf.raw_ops.EmptyTensorList(element_shape=-1, max_num_elements=0, element_dtype=tf.bool)
    return tf.zeros([], dtype)
