"""Iterators of `tf.data` in the graphs of `tf.compat.v1`: which dataset each goes through, for the runs that train."""

from __future__ import annotations

from typing import Any

from matex_tf.runtime.replace import replace_function
from matex_tf.v1 import run_plans


def install() -> None:
    from tensorflow.python.data.ops import dataset_ops, iterator_ops

    replace_function(dataset_ops.DatasetV1, "_make_one_shot_iterator", _wrap_make)
    replace_function(dataset_ops.DatasetV1, "_make_initializable_iterator", _wrap_make)
    replace_function(iterator_ops.Iterator, "make_initializer", _wrap_make_initializer)


def _wrap_make(original: Any) -> Any:
    def make(self, *args, **kwargs):
        iterator = original(self, *args, **kwargs)
        _note_iterator(iterator, self)
        return iterator

    return make


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
