"""Eager tensors: what a script reads or sums up of a loss that a tape has differentiated is the global value."""

from __future__ import annotations

from typing import Any

from matex_tf import losses, reductions, steps
from matex_tf.patches import replace, tapes

_OPERATORS = ("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__")


def install() -> None:
    import tensorflow as tf
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import math_ops

    base = next(kind for kind in ops.EagerTensor.__mro__ if "_numpy" in vars(kind))
    replace(base, "_numpy", _numpy)
    for owner in (tf, tf.math, math_ops):
        replace(owner, "reduce_sum", _reduce_sum)
    for name in _OPERATORS:
        replace(tf.Tensor, name, _operator)
    for kind in ops.EagerTensor.__mro__:
        if "__array__" in vars(kind) and kind is not object and kind.__module__.startswith("tensorflow"):
            replace(kind, "__array__", _array)
            break


def _reduce_sum(original: Any) -> Any:
    def reduce_sum(input_tensor, axis=None, *args, **kwargs):
        result = original(input_tensor, axis, *args, **kwargs)
        # Eager tensors do not know what they were made of, and a loss that is a sum over rows weighs otherwise.
        if tapes.recording() and hasattr(result, "numpy") and axis in (None, 0) and result.shape.rank == 0:
            shape = getattr(input_tensor, "shape", None)
            if shape is not None and len(shape) > 0:
                reductions.mark(result, "sum")
        return result

    return reduce_sum


def _numpy(original: Any) -> Any:
    def read(self):
        value = losses.global_value(self)
        return original(self) if value is None else original(value)

    return read


def _array(original: Any) -> Any:
    def read(self, *args, **kwargs):
        value = losses.global_value(self)
        return original(self if value is None else value, *args, **kwargs)

    return read


def _operator(original: Any) -> Any:
    def operate(self, other):
        # A script that adds up its losses outside of a tape means those of the whole batches.
        mine, theirs = losses.global_value(self), losses.global_value(other)
        if (mine is not None or theirs is not None) and not (tapes.recording() or steps.in_session_graph()):
            return original(self if mine is None else mine, other if theirs is None else theirs)
        result = original(self, other)
        # A sum over rows stays one when it is scaled by a number or added to something.
        if tapes.recording() and reductions.marked(self) == "sum" and not hasattr(other, "shape"):
            reductions.mark(result, "sum")
        return result

    return operate
