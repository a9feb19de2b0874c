"""What Keras callbacks know, as plain data: counters, best values, the history; copied out and put back.

What is no plain data, such as an open file or a function, a callback makes anew when training begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf import ops
from matex_tf.resilience import serialization

_LARGE = 1 << 20
# What these know beside it belongs to files and windows that are opened anew.
_ONLY = {"CSVLogger": ("keys",), "ProgbarLogger": (), "TensorBoard": ("_global_train_batch", "_global_test_batch")}
_NEVER = ("model", "_model", "params", "_params", "validation_data")
_LIBRARIES = ("keras.", "tf_keras.")


def find_large(callbacks: Sequence[Any]) -> dict[tuple[int, str], tuple[int, int]]:
    """The large arrays that callbacks hold as training begins, by place: what they are and their hash."""
    return {
        (index, name): (id(value), ops.hash_content(value))
        for index, callback in enumerate(callbacks)
        for name, value in vars(callback).items()
        if _is_large(value)
    }


def _is_large(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.nbytes > _LARGE and not value.dtype.hasobject


def copy_states(callbacks: Sequence[Any], unchanged: dict[Any, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The kind of each callback and what it knows; large arrays that are as they were when training began are left out.

    `unchanged` is what `find_large` gave then. Nothing is copied.
    """
    found = []
    for index, callback in enumerate(callbacks):
        state = {}
        for name, value in _list_attributes(callback):
            known = unchanged.get((index, name))
            if known is not None and known == (id(value), ops.hash_content(value)):
                continue
            if serialization.is_plain(value):
                state[name] = value
        found.append((type(callback).__name__, state))
    return found


def _list_attributes(callback: Any) -> list[tuple[str, Any]]:
    only = _ONLY.get(type(callback).__name__)
    return [
        (name, value)
        for name, value in list(vars(callback).items())
        if name not in _NEVER and (only is None or name in only)
    ]


def restore_states(callbacks: Sequence[Any], kept: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Give callbacks what was kept of those at the same places."""
    for callback, (kind, state) in zip(callbacks, kept):
        if type(callback).__name__ == kind:
            for name, value in state.items():
                vars(callback)[name] = serialization.restore_value(vars(callback).get(name), value)


def begin_anew(callbacks: Sequence[Any]) -> list[str]:
    """What callbacks of the script's own know and cannot be kept, in words."""
    found = []
    for callback in callbacks:
        kind = type(callback)
        if kind.__name__ == "LambdaCallback":
            found.append("what the functions of a LambdaCallback have noted")
        if kind.__module__.startswith(_LIBRARIES):
            continue
        names = [
            name
            for name, value in _list_attributes(callback)
            if not callable(value) and not serialization.is_plain(value)
        ]
        if names:
            found.append(f"{', '.join(names)} of {kind.__name__}")
    return found
