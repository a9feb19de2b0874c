"""Converts plain data to JSON and arrays, and back. Reading a saved file never runs code from it.

Plain are None, bool, numbers, strings; lists, tuples, sets and dicts of plain data; NumPy arrays and scalars, eager
tensors; and functions of NumPy and Keras, by name. `pack_value` makes JSON of them: (1, "a") becomes
{"tuple": [1, "a"]}, and an array its index in a list of arrays.
"""

from __future__ import annotations

import copy
import functools
import importlib
from typing import Any, NamedTuple

import numpy as np

from matex_tf.lazy import tf

_LIBRARIES = ("numpy", "keras", "tf_keras")
"""Functions of these libraries are plain data. Example: `EarlyStopping` of Keras 3 chooses its `monitor_op`, such as
`keras.ops.less`, and negates `min_delta` accordingly. So both must be restored."""


class NotPlain(TypeError):
    """The value is not plain data."""


class Packed(NamedTuple):
    """Plain data as JSON, in which an array is its index in `arrays`."""

    json: Any
    arrays: list[np.ndarray]


def is_plain(value: Any) -> bool:
    """Whether `pack_value` accepts `value`."""
    try:
        _convert_value(value, None)
    except (NotPlain, RecursionError):  # a container that contains itself
        return False
    return True


def pack_value(value: Any) -> Packed:
    """Copy `value`: later changes do not affect the result. Raises NotPlain."""
    arrays: list[np.ndarray] = []
    return Packed(_convert_value(value, arrays), arrays)


def _convert_value(value: Any, arrays: list[np.ndarray] | None) -> Any:
    """A JSON-compatible form of `value`. Copies of its arrays are appended to `arrays`, if given. Raises NotPlain."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list):
        return [_convert_value(part, arrays) for part in value]
    if isinstance(value, dict):
        return {"dict": [[_convert_value(part, arrays) for part in item] for item in value.items()]}
    if type(value) in (tuple, set, frozenset):
        return {type(value).__name__: [_convert_value(part, arrays) for part in value]}
    if type(value) is np.ndarray:  # a subclass has more than its array, such as a mask
        return {"array": _store_array(value, arrays)}
    if isinstance(value, np.generic):
        return {"number": _store_array(np.asarray(value), arrays)}
    if hasattr(value, "numpy") and hasattr(value, "dtype") and not hasattr(value, "assign"):  # no variable
        return {"tensor": _store_array(_convert_tensor(value), arrays)}
    name = _name_function(value)
    if name is None:
        raise NotPlain(f"{type(value).__name__} is no plain data")
    return {"function": name}


def unpack_value(packed: Packed) -> Any:
    """The inverse of `pack_value`. Raises NotPlain for a form that `pack_value` does not produce."""
    form, arrays = packed

    def unpack(form: Any) -> Any:
        return unpack_value(Packed(form, arrays))

    if isinstance(form, list):
        return list(map(unpack, form))
    if not isinstance(form, dict):
        return form
    ((kind, content),) = form.items()
    if kind == "dict":
        return {unpack(key): unpack(part) for key, part in content}
    if kind in ("tuple", "set", "frozenset"):
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](map(unpack, content))
    if kind == "array":
        return arrays[content].copy()
    if kind == "number":
        return arrays[content][()]
    if kind == "tensor":
        return tf.constant(arrays[content])
    if kind == "function":
        return _find_function(*content)
    raise NotPlain(f"there is no kind {kind!r}")


def restore_value(present: Any, saved: Any) -> Any:
    """The value that replaces `present`: a copy of `saved`, which may be restored again.

    A list or dict is updated in place, because other objects may refer to it.
    """
    saved = copy.deepcopy(saved)
    if type(present) is type(saved) is list:
        present[:] = saved
        return present
    if isinstance(present, dict) and isinstance(saved, dict):
        present.clear()
        present.update(saved)
        return present
    return saved


def name_dtype(dtype: np.dtype) -> str:
    """The name of `dtype`, including its byte order, that `find_dtype` accepts. Raises NotPlain if there is none."""
    for name in (dtype.str, dtype.name):  # of bfloat16 and the like, `str` names a dtype of plain bytes
        try:
            if not dtype.hasobject and find_dtype(name) == dtype:
                return name
        except NotPlain:
            continue
    raise NotPlain(f"an array of {dtype} is no plain data")


def find_dtype(name: str) -> np.dtype:
    """The dtype of this name. Raises NotPlain for an unknown name."""
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        return np.dtype(tf.as_dtype(name).as_numpy_dtype)  # such as bfloat16
    except TypeError:
        raise NotPlain(f"there is no dtype {name!r}") from None


def _store_array(array: np.ndarray, arrays: list[np.ndarray] | None) -> int:
    """Append a copy of `array` to `arrays`; returns its index. If `arrays` is None, only the dtype is checked."""
    name_dtype(array.dtype)
    if arrays is None:
        return 0
    arrays.append(np.array(array, copy=True, order="C"))
    return len(arrays) - 1


def _convert_tensor(tensor: Any) -> np.ndarray:
    try:
        return np.asarray(tensor.numpy())
    except (AttributeError, NotImplementedError) as error:  # a symbolic tensor
        raise NotPlain(str(error)) from None


def _name_function(value: Any) -> list[str] | None:
    """The module and the name of a function of `_LIBRARIES`, for `_find_function`; None for other values."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", getattr(value, "__name__", None))
    if isinstance(value, np.ufunc):
        module = "numpy"
    if not isinstance(module, str) or not isinstance(name, str) or module.split(".")[0] not in _LIBRARIES:
        return None
    try:
        return [module, name] if _find_function(module, name) is value else None
    except (ImportError, AttributeError):
        return None


def _find_function(module: str, name: str) -> Any:
    if module.split(".")[0] not in _LIBRARIES:
        raise NotPlain(f"{module}.{name} is no function of NumPy or Keras")
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))
