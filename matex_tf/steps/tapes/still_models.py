"""Whether the Python code of a Keras model would make the same trace again, so that it need not run.

The trace of a model that consists of Keras and TensorFlow code depends only on the arguments and on the attributes of
the layers, which are compared. A script's own code may depend on anything.
"""

from __future__ import annotations

import operator
import random
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from matex_tf.lazy import tf
from matex_tf.runtime import script_frames

LIBRARIES = ("tensorflow", "keras", "tf_keras")
_FUNCTIONS = (types.FunctionType, types.MethodType)
_CONTAINERS = (dict, list, tuple, set)


def watch_model(model: Any) -> Callable[[], bool]:
    """A function that tells whether the model is unchanged."""
    layers = list(model._flatten_layers())
    state_before = _list_state(layers)
    if not all(map(_is_of_libraries, (*map(type, layers), *state_before))):
        return lambda: False

    def is_same() -> bool:
        state_now = _list_state(layers)
        return len(state_now) == len(state_before) and all(map(operator.is_, state_now, state_before))

    return is_same


def list_kept_tensors(model: Any) -> list[Any]:
    """The tensors in attributes of the model's layers, such as losses that layers have added."""
    return [value for value in _list_state(model._flatten_layers()) if isinstance(value, tf.Tensor)]


def remember_python(model: Any) -> Callable[[], None]:
    """A function that undoes later changes by Python code: to attributes of layers, and to all random generators."""
    layers_and_attributes = [(layer, dict(vars(layer))) for layer in model._flatten_layers()]
    python_state, numpy_state = random.getstate(), np.random.get_state()

    def undo() -> None:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        for layer, attributes in layers_and_attributes:
            vars(layer).clear()
            vars(layer).update(attributes)

    return undo


def _list_state(layers: Iterable[Any]) -> list[Any]:
    """The attributes of layers, and the contents of containers among them."""
    values: list[Any] = []
    for layer in layers:
        for value in vars(layer).values():
            values += [value, *(list_items(value) if isinstance(value, _CONTAINERS) else ())]
    return values


def list_items(value: Any) -> list[Any]:
    """The contents of a container; any other value itself."""
    return list(value.values() if isinstance(value, dict) else value) if isinstance(value, _CONTAINERS) else [value]


def _is_of_libraries(value: Any) -> bool:
    """Whether all code that a call of `value` may run belongs to Keras or TensorFlow."""
    if isinstance(value, _FUNCTIONS):
        return script_frames.find_function_package(getattr(value, "__func__", value)) in LIBRARIES
    if not callable(value):
        return True
    value_class = value if isinstance(value, type) else type(value)
    return value_class.__module__.partition(".")[0] in (*LIBRARIES, "builtins")
