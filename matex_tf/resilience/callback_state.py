"""Copies and restores the state of Keras callbacks as plain data: counters, best values, the history.

Attributes that are not plain data, such as open files and functions, are not saved. A callback creates them again when
training begins.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf import ops
from matex_tf.resilience import serialization

_LARGE_BYTES = 1 << 20  # larger arrays are saved only if they have changed since training began
_ONLY = {"CSVLogger": ("keys",), "ProgbarLogger": (), "TensorBoard": ("_global_train_batch", "_global_test_batch")}
"""The only saved attributes of these callbacks. Their other ones belong to files and windows that are opened again."""
_EXCLUDED = ("model", "_model", "params", "_params", "validation_data")
_LIBRARIES = ("keras.", "tf_keras.")


def find_large(callbacks: Sequence[Any]) -> dict[tuple[int, str], tuple[int, int]]:
    """For each large array in an attribute when training begins: the object's `id`, and a hash of its content.

    The keys are the index of the callback and the name of the attribute.
    """
    return {
        (index, name): (id(value), ops.hash_content(value))
        for index, callback in enumerate(callbacks)
        for name, value in vars(callback).items()
        if isinstance(value, np.ndarray) and value.nbytes > _LARGE_BYTES and not value.dtype.hasobject
    }


def copy_states(callbacks: Sequence[Any], large_arrays: dict[Any, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The class name and the plain attributes of each callback; values are not copied.

    large_arrays: the result of `find_large` at the start of training. Large arrays that are the same objects with the
        same content are omitted.
    """
    states = []
    for index, callback in enumerate(callbacks):
        state = {}
        for name, value in _list_attributes(callback):
            identity_at_start = large_arrays.get((index, name))
            if identity_at_start is not None and identity_at_start == (id(value), ops.hash_content(value)):
                continue
            if serialization.is_plain(value):
                state[name] = value
        states.append((type(callback).__name__, state))
    return states


def _list_attributes(callback: Any) -> list[tuple[str, Any]]:
    saved_names = _ONLY.get(type(callback).__name__)
    return [
        (name, value)
        for name, value in list(vars(callback).items())
        if name not in _EXCLUDED and (saved_names is None or name in saved_names)
    ]


def restore_states(callbacks: Sequence[Any], saved: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Restore the saved attributes of each callback, by position. A callback of another class stays unchanged."""
    for callback, (class_name, state) in zip(callbacks, saved):
        if type(callback).__name__ == class_name:
            for name, value in state.items():
                vars(callback)[name] = serialization.restore_value(vars(callback).get(name), value)


def list_unsaved_attributes(callbacks: Sequence[Any]) -> list[str]:
    """Attributes of the script's own callbacks that cannot be saved, as text for a message."""
    texts = []
    for callback in callbacks:
        callback_class = type(callback)
        if callback_class.__name__ == "LambdaCallback":
            texts.append("the state in the functions of a LambdaCallback")
        if callback_class.__module__.startswith(_LIBRARIES):
            continue
        attributes = _list_attributes(callback)
        names = [name for name, value in attributes if not callable(value) and not serialization.is_plain(value)]
        if names:
            texts.append(f"{', '.join(names)} of {callback_class.__name__}")
    return texts


def measure_logs(callbacks: Sequence[Any]) -> list[int | None]:
    """For each callback: the bytes of its file if it is a `CSVLogger` that has one; else None."""
    return [None if (path := _find_log(callback)) is None else os.path.getsize(path) for callback in callbacks]


def continue_logs(callbacks: Sequence[Any], sizes: Sequence[int | None], has_lines: bool) -> list[Any]:
    """Let each `CSVLogger` append to its file, without the lines that it wrote after the state was saved.

    sizes: the result of `measure_logs` when the state was saved.
    has_lines: whether the files had lines of the interrupted call then. Without them, a callback that overwrites its
        file begins again.

    Returns the callbacks that would overwrite their files: their `append` is True until `leave_logs`.
    """
    changed_callbacks = []
    for callback, size in zip(callbacks, sizes):
        path = _find_log(callback)
        if path is None or size is None or not (callback.append or has_lines):
            continue
        if os.path.getsize(path) > size:
            os.truncate(path, size)
        if not callback.append:
            callback.append = True
            changed_callbacks.append(callback)
    return changed_callbacks


def leave_logs(changed_callbacks: Sequence[Any]) -> None:
    """After the call of `fit`: let the callbacks that `continue_logs` has changed overwrite their files again."""
    for callback in changed_callbacks:
        callback.append, callback.append_header = False, True  # Keras sets `append_header` only if `append` is True


def _find_log(callback: Any) -> str | None:
    """The file of a `CSVLogger`; None for another callback, and if it does not exist on this host."""
    if type(callback).__name__ != "CSVLogger" or not os.path.exists(callback.filename):
        return None
    path: str = callback.filename
    return path
