"""Iterators in the trace of a step: batches of any number of rows; a loop over a dataset is one over its iterator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from matex_tf.runtime.replace import replace_function
from matex_tf.steps import capture, own_data


def install() -> None:
    from tensorflow.python.autograph.operators import control_flow
    from tensorflow.python.data.ops import dataset_ops, iterator_ops

    for name in ("_next_internal", "get_next_as_optional"):
        replace_function(iterator_ops.OwnedIterator, name, _wrap_next)
    loops = control_flow.for_loop_registry._registry  # what is registered cannot be registered again
    loops[dataset_ops.DatasetV2] = _wrap_dataset_loop(loops[dataset_ops.DatasetV2])


def _wrap_next(original: Any) -> Any:
    def take_next(self):
        if not capture.is_opening():
            return original(self)
        with _open_rows(self):
            return original(self)

    return take_next


@contextlib.contextmanager
def _open_rows(iterator: Any) -> Iterator[None]:
    from tensorflow.python.data.util import structure

    names = ("_element_spec", "_flat_output_shapes")
    before = {name: getattr(iterator, name) for name in names}
    iterator._element_spec = capture.open_spec(iterator._element_spec)
    iterator._flat_output_shapes = structure.get_flat_tensor_shapes(iterator._element_spec)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(iterator, name, value)


def _wrap_dataset_loop(original: Any) -> Any:
    from tensorflow.python.autograph.operators import control_flow

    def loop(dataset, *args, **kwargs):
        if not capture.is_opening():
            own_data.require_shared(dataset)
            return original(dataset, *args, **kwargs)
        return control_flow._tf_iterator_for_stmt(iter(dataset), *args, **kwargs)

    return loop
