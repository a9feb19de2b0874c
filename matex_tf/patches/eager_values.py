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
        replace(owner, "reduce_sum", _noted("sum"))
        replace(owner, "reduce_mean", _noted("mean"))
    replace(tf.nn, "compute_average_loss", _average)
    for name in _OPERATORS:
        replace(tf.Tensor, name, _operator(name.strip("_").removeprefix("r")))
    for kind in ops.EagerTensor.__mro__:
        if "__array__" in vars(kind) and kind is not object and kind.__module__.startswith("tensorflow"):
            replace(kind, "__array__", _array)
            break


def _noted(kind: str) -> Any:
    """A reduction that notes how the rows were removed: an eager tensor does not know what it was made of."""

    def make(original: Any) -> Any:
        def reduce(input_tensor, axis=None, *args, **kwargs):
            result = original(input_tensor, axis, *args, **kwargs)
            if tapes.recording() and hasattr(result, "numpy"):
                before = reductions.marked(input_tensor)
                removes = axis in (None, 0) and len(getattr(input_tensor, "shape", ())) > 0
                if before or removes:
                    reductions.mark(result, before or kind)
            return result

        return reduce

    return make


def _average(original: Any) -> Any:
    def compute_average_loss(per_example_loss, sample_weight=None, global_batch_size=None):
        result = original(per_example_loss, sample_weight=sample_weight, global_batch_size=global_batch_size)
        if global_batch_size is not None and hasattr(result, "numpy"):
            reductions.mark(result, "sum")
        return result

    return compute_average_loss


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


def _operator(does: str) -> Any:
    def make(original: Any) -> Any:
        def operate(self, other):
            # A script that adds up its losses outside of a tape means those of the whole batches.
            mine, theirs = losses.global_value(self), losses.global_value(other)
            if (mine is not None or theirs is not None) and not (tapes.recording() or steps.in_session_graph()):
                return original(self if mine is None else mine, other if theirs is None else theirs)
            result = original(self, other)
            if tapes.recording() and hasattr(result, "numpy"):
                _pass_on(does, self, other, result)
            return result

        return operate

    return make


def _pass_on(does: str, left: Any, right: Any, result: Any) -> None:
    """A sum over rows stays one when it is scaled by a number or added to something; of two, one divides the other.

    So does a ratio of two, unless it is added to another figure of the rows.
    """
    kinds = {reductions.marked(part) for part in (left, right)} - {None}
    if does == "truediv" and reductions.marked(left) and reductions.marked(right):
        reductions.divide(result, right)
    elif len(kinds) == 1 and (does in ("add", "sub") or not hasattr(right, "shape")):
        reductions.mark(result, kinds.pop())
        marked = [part for part in (left, right) if reductions.marked(part)]
        if len(marked) == 1 and reductions.divisor(marked[0]) is not None:
            reductions.divide(result, reductions.divisor(marked[0]))
