"""Eager tensors: the number of rows of a batch that a script asks for its books is that of the whole batch."""

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
