"""Eager tensors: the number of rows of a batch that a script asks for its books is that of the whole batch.

What it does with rows that slices could not do is noticed.
"""

from __future__ import annotations

import sys
from typing import Any

from matex_tf import bookkeeping
from matex_tf.patches import replace


def install() -> None:
    import tensorflow as tf
    from tensorflow.python.framework import ops

    kind = next(kind for kind in ops.EagerTensor.__mro__ if "_numpy" in vars(kind))
    replace(kind, "__len__", _len)
    replace(tf.Tensor, "__iter__", _iter)
    replace(tf, "shape", _shape)
    for owner in (tf, tf.linalg):
        for name in ("matmul", "einsum", "tensordot"):
            if hasattr(owner, name):
                replace(owner, name, _product)
    replace(tf.Tensor, "__matmul__", _product)
    for name in ("reduce_std", "reduce_variance"):
        replace(tf.math, name, _spread)
    replace(tf.nn, "moments", _spread)


def _len(original: Any) -> Any:
    def __len__(self):
        rows = bookkeeping.asked(self, sys._getframe(1))
        return original(self) if rows is None else rows

    return __len__


def _iter(original: Any) -> Any:
    def __iter__(self):
        if hasattr(self, "numpy"):
            bookkeeping.notice_read(self, sys._getframe(1))
        return original(self)

    return __iter__


def _shape(original: Any) -> Any:
    def shape(input, *args, **kwargs):
        result = original(input, *args, **kwargs)
        rows = bookkeeping.asked(input, sys._getframe(1))
        if rows is None:
            return result
        import tensorflow as tf

        return tf.concat([[tf.cast(rows, result.dtype)], result[1:]], 0)

    return shape


def _product(original: Any) -> Any:
    def multiply(*args, **kwargs):
        result = original(*args, **kwargs)
        if hasattr(result, "numpy"):
            bookkeeping.notice_product(result, [*args, *kwargs.values()], sys._getframe(1))
        return result

    return multiply


def _spread(original: Any) -> Any:
    def spread(tensor, axis=None, *args, **kwargs):
        if hasattr(tensor, "numpy"):
            bookkeeping.notice_spread(tensor, kwargs.get("axes", axis), sys._getframe(1))
        return original(tensor, *(() if axis is None else (axis,)), *args, **kwargs)

    return spread
