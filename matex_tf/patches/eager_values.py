"""Eager tensors: what a script reads, prints or sums up of a loss or of another figure of a slice is the global value.

On the way to there it is noted of each figure how it depends on the rows: an eager tensor does not know what it was
made of. A sum over rows that is added to a mean is scaled, so that the whole weighs as the mean does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf import bookkeeping, figures, graphs, losses, reductions, steps
from matex_tf.patches import replace, tapes

_BINARY = ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv")
_OTHERS = ("lt", "le", "gt", "ge", "pow", "rpow", "floordiv", "mod", "abs")
_FUNCTIONS = {"add": "add", "subtract": "sub", "multiply": "mul", "divide": "truediv"}
_OF_FIGURES = ("sqrt", "square", "exp", "log", "abs", "round", "maximum", "minimum", "pow")
_OF_LISTS = ("stack", "convert_to_tensor")


def install() -> None:
    import tensorflow as tf
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import math_ops

    base = next(kind for kind in ops.EagerTensor.__mro__ if "_numpy" in vars(kind))
    replace(base, "_numpy", _numpy)
    for owner in (tf, tf.math, math_ops):
        replace(owner, "reduce_sum", _noted("sum"))
        replace(owner, "reduce_mean", _noted("mean"))
    for owner in (tf, tf.math):
        for name, does in _FUNCTIONS.items():
            if hasattr(owner, name):
                replace(owner, name, _binary(does))
        for names, make in ((_OF_FIGURES, _curve), (_OF_LISTS, _of_whole)):
            for name in names:
                if hasattr(owner, name):
                    replace(owner, name, make)
        replace(owner, "add_n", _add_n)
    replace(tf.nn, "l2_loss", _l2_loss)
    for owner in (tf.summary, tf.compat.v2.summary):
        if hasattr(owner, "scalar"):
            replace(owner, "scalar", _scalar_summary)
    replace(tf, "print", _print)
    replace(tf.nn, "compute_average_loss", _average)
    replace(tf, "cast", _unary)
    for name in _BINARY:
        replace(tf.Tensor, f"__{name}__", _binary(name))
    for name in _OTHERS:
        if hasattr(tf.Tensor, f"__{name}__"):
            replace(tf.Tensor, f"__{name}__", _curve)
    replace(tf.Tensor, "__neg__", _unary)
    for kind in ops.EagerTensor.__mro__:
        if "__array__" in vars(kind) and kind is not object and kind.__module__.startswith("tensorflow"):
            replace(kind, "__array__", _array)
            break


def whole(value: Any) -> Any:
    """The global value of a figure, or None where `value` is none. Collective where it is not known yet."""
    known = losses.global_value(value)
    return figures.total(value) if known is None else known


def whole_within(value: Any) -> Any:
    """`value`, or the values in a list, with the global ones in place of figures."""
    if type(value) in (list, tuple):
        if not value or not hasattr(value[0], "dtype"):
            return value
        known = [whole(part) for part in value]
        if all(part is None for part in known):
            return value
        return type(value)(part if new is None else new for part, new in zip(value, known))
    known = whole(value)
    return value if known is None else known


def _outside() -> bool:
    """Whether a script that computes with figures now means to look at them: nothing records, and it is no v1 graph."""
    return not (tapes.recording() or steps.in_session_graph())


def _of_whole(original: Any) -> Any:
    def compute(value, *args, **kwargs):
        if _outside():
            value, args = whole_within(value), tuple(whole_within(part) for part in args)
        return original(value, *args, **kwargs)

    return compute


def _curve(original: Any) -> Any:
    """What bends a figure, such as a square root: under a tape, too, it is taken of the whole batch's."""
    outside = _of_whole(original)

    def compute(value, *args, **kwargs):
        if not tapes.recording() or steps.current_slice() is None:
            return outside(value, *args, **kwargs)
        known = [figures.of_whole_batch(part) for part in (value, *args)]
        result = original(*known, **kwargs)
        if any(part is not given for part, given in zip(known, (value, *args))) and hasattr(result, "numpy"):
            figures.note_mean(result)
        return result

    return compute


def _noted(kind: str) -> Any:
    """A reduction that notes how the rows were removed."""

    def make(original: Any) -> Any:
        def reduce(input_tensor, axis=None, *args, **kwargs):
            if _outside() and (type(input_tensor) in (list, tuple) or losses.global_value(input_tensor) is not None):
                input_tensor = whole_within(input_tensor)
            result = original(input_tensor, axis, *args, **kwargs)
            if hasattr(result, "numpy"):
                _note(result, input_tensor, axis, kind)
            return result

        return reduce

    return make


def _note(result: Any, source: Any, axis: Any, kind: str) -> None:
    figures.note(result, source, axis, kind)
    if not tapes.recording():
        return
    before = reductions.marked(source)
    # Within a step on a slice, what has other numbers of rows is of no rows: a penalty on weights, or a constant batch.
    of_rows = steps.current_slice() is None or figures.part_of(result) is not None
    if before or (of_rows and figures.removes_rows(axis, len(getattr(source, "shape", ())))):
        reductions.mark(result, before or kind)


def _l2_loss(original: Any) -> Any:
    def l2_loss(t, *args, **kwargs):
        result = original(t, *args, **kwargs)
        if hasattr(result, "numpy"):
            _note(result, t, None, "sum")
        return result

    return l2_loss


def _average(original: Any) -> Any:
    def compute_average_loss(per_example_loss, sample_weight=None, global_batch_size=None):
        result = original(per_example_loss, sample_weight=sample_weight, global_batch_size=global_batch_size)
        if global_batch_size is not None and hasattr(result, "numpy"):
            reductions.mark(result, "sum")
        return result

    return compute_average_loss


def _numpy(original: Any) -> Any:
    def read(self):
        value = whole(self)
        if value is None:
            bookkeeping.notice_read(self, sys._getframe(1))
        return original(self if value is None else value)

    return read


def _array(original: Any) -> Any:
    def read(self, *args, **kwargs):
        value = whole(self)
        return original(self if value is None else value, *args, **kwargs)

    return read


def _unary(original: Any) -> Any:
    """What scales a figure, or keeps it: a sign, another dtype."""

    def compute(value, *args, **kwargs):
        if _outside():
            result = original(whole_within(value), *args, **kwargs)
            bookkeeping.pass_on(value, result)
            return result
        result = original(value, *args, **kwargs)
        if hasattr(value, "numpy"):
            _pass_on("mul", value, 1, result)
            bookkeeping.pass_on(value, result)
        return result

    return compute


def _binary(does: str) -> Any:
    """An operator, or the function of the same meaning, that notes what its result is of the rows."""

    def make(original: Any) -> Any:
        def operate(left, right, *args, **kwargs):
            if _outside():
                return original(whole_within(left), whole_within(right), *args, **kwargs)
            if not tapes.recording():
                return original(left, right, *args, **kwargs)
            if does.removeprefix("r") in ("add", "sub"):
                left, right = _as_means([left, right])
            if not (hasattr(left, "numpy") or hasattr(right, "numpy")):
                return original(left, right, *args, **kwargs)
            result = original(left, right, *args, **kwargs)
            if does != "rtruediv":
                _pass_on(does.removeprefix("r"), left, right, result)
            return result

        return operate

    return make


def _add_n(original: Any) -> Any:
    def add_n(inputs, *args, **kwargs):
        if _outside():
            return original(whole_within(inputs), *args, **kwargs)
        if not tapes.recording() or not isinstance(inputs, (list, tuple)):
            return original(inputs, *args, **kwargs)
        inputs = _as_means(inputs)
        result = original(inputs, *args, **kwargs)
        if len(inputs) > 1:
            _pass_on("add", inputs[0], inputs[1], result)
        return result

    return add_n


def _scalar_summary(original: Any) -> Any:
    def scalar(name, data, *args, **kwargs):
        return original(name, shown(data), *args, **kwargs)

    return scalar


def _print(original: Any) -> Any:
    def tf_print(*inputs, **kwargs):
        return original(*[shown(part) for part in inputs], **kwargs)

    return tf_print


def shown(value: Any) -> Any:
    """What a script shows of `value`; in a function, a figure of the rows is put together where gradients were."""
    import tensorflow as tf

    if not _outside():
        return value
    known = whole_within(value)
    if known is not value or not isinstance(value, tf.Tensor) or hasattr(value, "numpy"):
        return known
    if not graphs.is_training_step(tf.compat.v1.get_default_graph()):
        return value
    made = losses.global_figures([value], [None])[0]
    return value if made is None else made


def _as_means(terms: Sequence[Any]) -> list[Any]:
    """What is added up: a sum over rows beside anything else but nothing is scaled, to weigh as a mean does."""
    kinds = [_kind_of(term) for term in terms]
    if "sum" not in kinds or all(kind == "sum" or _is_zero(term) for term, kind in zip(terms, kinds)):
        return list(terms)
    return [_as_mean(term) if kind == "sum" else term for term, kind in zip(terms, kinds)]


def _kind_of(term: Any) -> str | None:
    if hasattr(term, "numpy") or not hasattr(term, "op") or getattr(term, "shape", None) is None:
        return reductions.marked(term)
    return reductions.kind(term) if term.shape.rank == 0 and term.dtype.is_floating else None


def _as_mean(term: Any) -> Any:
    return figures.as_mean(term) if hasattr(term, "numpy") else losses.sum_as_mean(term)


def _is_zero(value: Any) -> bool:
    return isinstance(value, (int, float)) and value == 0


def _pass_on(does: str, left: Any, right: Any, result: Any) -> None:
    """A figure over rows stays one when it is scaled by a number or added to something; of two, one divides the other.

    So does a ratio of two, unless it is added to another figure of the rows.
    """
    if not hasattr(result, "numpy"):
        return
    if does == "truediv" and reductions.marked(left) and reductions.marked(right):
        reductions.divide(result, right)
        return
    if does == "truediv" and _divided(left, right, result):
        return
    # Only of sums: the factor is read, and of a figure that is a meeting of all ranks.
    pairs = [(part, factor) for part, factor in ((left, right), (right, left)) if _is_sum(part)]
    if does == "mul" and any(_divided(part, _inverse(factor), result) for part, factor in pairs):
        return
    kinds = {reductions.marked(part) for part in (left, right)} - {None}
    if len(kinds) == 1 and (does in ("add", "sub") or _is_factor(right if _has_kind(left) else left, kinds)):
        reductions.mark(result, kinds.pop())
        marked = [part for part in (left, right) if _has_kind(part)]
        if len(marked) == 1 and reductions.divisor(marked[0]) is not None:
            reductions.divide(result, reductions.divisor(marked[0]))
    parts = [part for part in map(figures.part_of, (left, right)) if part is not None]
    if len({part.kind for part in parts}) == 1 and (len(parts) == 1 or does in ("add", "sub")):
        figures.pass_on(result, parts[0])


def _has_kind(value: Any) -> bool:
    return reductions.marked(value) is not None


def _is_factor(value: Any, kinds: set) -> bool:
    """Whether `value` only scales a figure of the rows: a number, or a scalar that is the same on all ranks."""
    if not hasattr(value, "shape") or hasattr(value, "assign"):
        return True
    return len(value.shape) == 0 and kinds == {"sum"} and figures.is_the_same(value)


def _is_sum(value: Any) -> bool:
    part = figures.part_of(value)
    return part is not None and part.kind == "sum"


def _inverse(factor: Any) -> int | None:
    """The whole number, such as one of rows, of which `factor` is the inverse; None if it is of none."""
    if (
        hasattr(factor, "assign")
        or len(getattr(factor, "shape", ())) != 0
        or not (isinstance(factor, float) or hasattr(factor, "numpy") and factor.dtype.is_floating)
    ):
        return None
    value = float(np.asarray(factor))
    number = round(1 / value) if 1e-9 < value < 1 else 0
    return number if number > 1 and abs(value * number - 1) < 1e-6 else None


def _divided(left: Any, right: Any, result: Any) -> bool:
    """Note what a sum over rows is once it is divided by a number; whether that was so."""
    if not _is_sum(left) or right is None or len(getattr(right, "shape", ())) != 0 or hasattr(right, "assign"):
        return False
    part = figures.part_of(left)
    by_rows = figures.is_mean_by(part, right)
    if by_rows is not None:
        kind = "mean" if by_rows else "sum"
        figures.pass_on(result, part._replace(kind=kind))
        if _has_kind(left):
            reductions.mark(result, kind)
    return True
