"""The collectives of one wave of a copied step, over MPI: one message for all sums of floats, others one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf import ops

_SUMMED = ("float16", "bfloat16", "float32", "float64")
_REDUCED = (*_SUMMED, "int32", "int64")
_GATHERED = (*_REDUCED, "uint8", "bool")
_BYTES = 256


class RankExchanger:
    """See `rewrite.sharing.Exchanger`.

    place: names the step in messages.
    rows: how many the batch of the call has, a float64 scalar, where that is known; it goes with the first sum, so that
        ranks whose batches have different numbers raise an error.
    is_ordered: whether collectives run in the order in which they are made, see `rewrite.emit.Copy`.
    """

    def __init__(self, place: str, rows: Any = None, is_ordered: bool = True):
        self.place, self.rows, self.is_ordered = place, rows, is_ordered

    def exchange(self, requests: Sequence[tuple[str, Any]], contributes: Any) -> list[Any]:
        import tensorflow as tf

        made: list[Any] = [None] * len(requests)
        sums = [
            index for index, (kind, tensor) in enumerate(requests) if kind == "sum" and tensor.dtype.name in _SUMMED
        ]
        if sums:
            tensors = [requests[index][1] for index in sums]
            names = [tensor.op.name for tensor in tensors]
            weight = tf.cast(contributes, tf.float64)
            if self.rows is not None:
                weight, self.rows = tf.stack([weight, self.rows]), None
            for index, one in zip(sums, ops.reduce_gradients(tensors, names, weight, self.place)):
                made[index] = one
        before = [made[index].op for index in sums[:1] if not self.is_ordered]
        for index, (kind, tensor) in enumerate(requests):
            if made[index] is None:
                exchange = self._gather if kind == "gather" else self._reduce
                with tf.control_dependencies(before):
                    made[index] = exchange(kind, tensor, contributes)
                before = [] if self.is_ordered else [made[index].op]
            shape = tensor.shape
            made[index].set_shape([None, *shape[1:]] if kind == "gather" and shape.rank else shape)
        return made

    def _reduce(self, kind: str, tensor: Any, contributes: Any) -> Any:
        """A sum of whole numbers, or an extreme, of those ranks that contribute."""
        import tensorflow as tf

        dtype = tensor.dtype
        if dtype.is_complex:
            parts = tf.stack([tf.math.real(tensor), tf.math.imag(tensor)])
            return tf.complex(*tf.unstack(self._reduce(kind, parts, contributes)))
        if dtype.is_bool:
            return tf.cast(self._reduce(kind, tf.cast(tensor, tf.int32), contributes), tf.bool)
        if dtype.name not in _REDUCED:
            return tf.cast(self._reduce(kind, tf.cast(tensor, tf.int64), contributes), dtype)
        neutral = 0 if kind == "sum" else dtype.max if kind == "min" else dtype.min
        if kind != "sum" and dtype.is_floating:
            neutral = float("inf") if kind == "min" else -float("inf")
        given = tf.where(contributes, tensor, tf.constant(neutral, dtype))
        return ops.allreduce(given, kind, name=f"{self.place}: {tensor.op.name}")

    def _gather(self, kind: str, tensor: Any, contributes: Any) -> Any:
        import tensorflow as tf

        rows = tf.cond(contributes, lambda: tensor, lambda: tensor[:0])
        rows.set_shape([None, *tensor.shape[1:]])
        name = f"{self.place}: {tensor.op.name}"
        if tensor.dtype == tf.string:
            return _gather_strings(rows, name)
        if tensor.dtype.is_complex:
            parts = tf.stack([tf.math.real(rows), tf.math.imag(rows)], -1)
            whole = ops.allgather(parts, name)
            return tf.complex(whole[..., 0], whole[..., 1])
        if tensor.dtype.name not in _GATHERED:
            return tf.cast(ops.allgather(tf.cast(rows, tf.int64), name), tensor.dtype)
        return ops.allgather(rows, name)


def _gather_strings(rows: Any, name: str) -> Any:
    """The strings' bytes and lengths travel."""
    import tensorflow as tf

    shape = tf.shape(rows, tf.int64)
    flat = tf.reshape(rows, [-1])
    lengths = ops.allgather(tf.strings.length(flat), name)
    with tf.control_dependencies([lengths.op]):
        data = ops.allgather(tf.io.decode_raw(tf.strings.reduce_join(flat), tf.uint8), name)
    letters = tf.constant([bytes([code]) for code in range(_BYTES)])
    joined = tf.strings.reduce_join(tf.gather(letters, tf.cast(data, tf.int32)))
    starts = tf.cumsum(lengths, exclusive=True)
    found = tf.strings.substr(tf.fill(tf.shape(starts), joined), starts, lengths)
    return tf.reshape(found, tf.concat([[-1], shape[1:]], 0))
