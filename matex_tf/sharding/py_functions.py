"""Python functions of the library in `tf.data` pipelines: they live as long as the pipeline.

TensorFlow keeps the functions of `tf.py_function` and `tf.numpy_function` alive with the outermost graph, which in
eager code exists until the process ends, and with them all that they refer to: models, and arrays of data.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from matex_tf import tags
from matex_tf.lazy import tf

_KNOWN = "_py_funcs_used_in_graph"


def hold_py_functions(make: Callable[[], Any]) -> Any:
    """The dataset that `make` returns. In eager code the dataset, and datasets made of it, own the functions that it
    calls.
    """
    if not tf.executing_eagerly():
        return make()
    graph = tf.compat.v1.get_default_graph()
    before = len(getattr(graph, _KNOWN, []))
    dataset = make()
    known = getattr(graph, _KNOWN, [])
    ours = [function for function in known[before:] if _is_ours(function)]
    tags.set_tag(dataset, "functions of py_function", ours)  # the dataset may refer to it
    for function in ours:
        known.remove(function)
    return dataset


def _is_ours(function: Any) -> bool:
    """Whether it is a function of the library: another thread may be building a pipeline with the
    script's functions.
    """
    called = inspect.unwrap(getattr(function, "_func", function))
    return (getattr(called, "__module__", None) or "").startswith("matex_tf.")
