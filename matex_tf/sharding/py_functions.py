"""Frees the library's own Python functions in a `tf.data` pipeline together with the pipeline.

TensorFlow keeps each function that is given to `tf.py_function` or `tf.numpy_function` in a list of the outermost
graph. In eager code this graph exists until the process ends. Everything to which the function refers, such as a model
or an array of data, would stay in memory as long.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from matex_tf import tags
from matex_tf.lazy import tf

_LIST = "_py_funcs_used_in_graph"
"""The attribute of a graph in which TensorFlow keeps the functions."""


def move_functions_to_dataset(make_dataset: Callable[[], Any]) -> Any:
    """The dataset that `make_dataset` returns, with the functions that `make_dataset` has added to the graph's list.

    In eager code, the functions are moved from that list to a tag of the dataset. A dataset that is made from this one
    refers to it, so the functions exist as long as a pipeline can call them.
    """
    if not tf.executing_eagerly():  # the functions belong to a graph that is freed with the dataset
        return make_dataset()
    graph = tf.compat.v1.get_default_graph()
    count_before = len(getattr(graph, _LIST, []))
    dataset = make_dataset()
    functions = getattr(graph, _LIST, [])
    added = [function for function in functions[count_before:] if _is_of_library(function)]
    tags.set_tag(dataset, "functions of py_function", added)
    for function in added:
        functions.remove(function)
    return dataset


def _is_of_library(function: Any) -> bool:
    """Whether this library defines a function. Functions of the script, which another thread may add to the list
    meanwhile, stay there.
    """
    called = inspect.unwrap(getattr(function, "_func", function))
    return (getattr(called, "__module__", None) or "").startswith("matex_tf.")
