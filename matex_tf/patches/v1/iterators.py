"""Iterators of `tf.data` in the graphs of `tf.compat.v1`: which dataset each goes through, for the runs that train."""

from __future__ import annotations

from typing import Any

from matex_tf.runtime.hooks import Table
from matex_tf.v1 import run_plans

HOOKS = Table()

_LOST = "the dataset of a session's run is not known"


@HOOKS.replace(
    "tensorflow.python.data.ops.dataset_ops",
    "DatasetV1._make_one_shot_iterator DatasetV1._make_initializable_iterator",
    _LOST,
)
def _wrap_make(original: Any) -> Any:
    def make(self, *args, **kwargs):
        iterator = original(self, *args, **kwargs)
        _note_iterator(iterator, self)
        return iterator

    return make


@HOOKS.replace("tensorflow.python.data.ops.iterator_ops", "Iterator.make_initializer", _LOST)
def _wrap_make_initializer(original: Any) -> Any:
    def make_initializer(self, dataset, *args, **kwargs):
        result = original(self, dataset, *args, **kwargs)
        _note_iterator(self, dataset)
        return result

    return make_initializer


def _note_iterator(iterator: Any, dataset: Any) -> None:
    resource = getattr(iterator, "_iterator_resource", None)
    if resource is not None and hasattr(resource, "op") and not hasattr(resource, "numpy"):
        run_plans.note_dataset(resource.op, dataset)
