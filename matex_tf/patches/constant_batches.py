"""Operations that take rows pair by pair: what has the rows of the whole batch by a constant is cut to the slice's."""

from __future__ import annotations

from typing import Any

from matex_tf import constant_rows, steps
from matex_tf.patches import replace, when_imported

_OPERATORS = ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "lt", "le", "gt", "ge")
_PAIRS = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "pow", "equal", "not_equal")
_LOSSES = (
    "sigmoid_cross_entropy_with_logits",
    "softmax_cross_entropy_with_logits",
    "sparse_softmax_cross_entropy_with_logits",
    "weighted_cross_entropy_with_logits",
)


def install() -> None:
    import tensorflow as tf

    for name in _OPERATORS:
        replace(tf.Tensor, f"__{name}__", _pairs)
    for owner in (tf, tf.math):
        for name in _PAIRS:
            if hasattr(owner, name):
                replace(owner, name, _pairs)
    replace(tf.math, "squared_difference", _pairs)
    replace(tf, "where", _arguments(repeats=True))
    replace(tf, "concat", _joined)
    replace(tf, "stack", _stacked)
    for owner in (tf.nn, tf.compat.v2.nn):
        for name in _LOSSES:
            replace(owner, name, _arguments(repeats=False))
    when_imported("keras.src.backend.tensorflow.nn", _keras3)


def _keras3(module: Any) -> None:
    for name in ("binary_crossentropy", "categorical_crossentropy", "sparse_categorical_crossentropy"):
        replace(module, name, _arguments(repeats=False))


def _pairs(original: Any) -> Any:
    def operate(left, right=None, *args, **kwargs):
        if steps.current_slice() is not None and right is not None:
            left, right = constant_rows.aligned([left, right], repeats=True)
        return original(left, *(() if right is None else (right,)), *args, **kwargs)

    return operate


def _arguments(repeats: bool) -> Any:
    """All arguments are rows of the same batch."""

    def make(original: Any) -> Any:
        def operate(*args, **kwargs):
            if steps.current_slice() is not None:
                cut = constant_rows.aligned([*args, *kwargs.values()], repeats)
                args, kwargs = tuple(cut[: len(args)]), dict(zip(kwargs, cut[len(args) :]))
            return original(*args, **kwargs)

        return operate

    return make


def _joined(original: Any) -> Any:
    def concat(values, axis, *args, **kwargs):
        if steps.current_slice() is not None and isinstance(values, (list, tuple)) and isinstance(axis, int):
            values = constant_rows.joined(values, axis)
        return original(values, axis, *args, **kwargs)

    return concat


def _stacked(original: Any) -> Any:
    def stack(values, *args, **kwargs):
        if steps.current_slice() is not None and isinstance(values, (list, tuple)):
            values = constant_rows.aligned(values, repeats=False)
        return original(values, *args, **kwargs)

    return stack
