"""Frees Python functions of the library in `tf.data` pipelines together with the pipeline.

TensorFlow keeps the functions of `tf.py_function` and `tf.numpy_function` alive with the outermost graph, which in
eager code exists until the process ends. So everything that they refer to, such as models and arrays of data, would
stay in memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from matex_tf import tags
from matex_tf.lazy import tf

_LIST = "_py_funcs_used_in_graph"
"""The attribute of a graph that keeps the functions alive."""


def hold_py_functions(make_dataset: Callable[[], Any]) -> Any:
    """The dataset that `make_dataset` returns. In eager code the dataset, and datasets made of it, own the functions
    that it calls.
    """
    if not tf.executing_eagerly():
        return make_dataset()
    graph = tf.compat.v1.get_default_graph()
    count_before = len(getattr(graph, _LIST, []))
    dataset = make_dataset()
    functions = getattr(graph, _LIST, [])
    own = [function for function in functions[count_before:] if _is_of_library(function)]
    tags.set_tag(dataset, "functions of py_function", own)
    for function in own:
        functions.remove(function)
    return dataset


def _is_of_library(function: Any) -> bool:
    """Whether this library defines the function. Another thread may add functions of the script meanwhile."""
    called = inspect.unwrap(getattr(function, "_func", function))
    return (getattr(called, "__module__", None) or "").startswith("matex_tf.")
