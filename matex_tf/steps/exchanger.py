"""The collectives of one wave of a copied step, over MPI: one message for all sums of floats, others one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf import ops
from matex_tf.rewrite.sharing import Share
from matex_tf.steps.gradients import name_sums
from matex_tf.world import world

_SUMMED = ("float16", "bfloat16", "float32", "float64")
_REDUCED = (*_SUMMED, "int32", "int64")
_GATHERED = (*_REDUCED, "uint8", "bool")
_BYTES = 256


class RankExchanger:
    """See `rewrite.sharing.Exchanger`.

    place: names the step in messages.
    The number of rows of the batch goes with sums, so that ranks whose batches have different numbers raise an error.

    is_ordered: whether collectives run in the order in which they are made, see `rewrite.emit.Copy`.
    checked: whether a gradient that is no finite number is an error.

    The last sums with gradients of a step are an update, which is counted and recorded as such.
    """

    def __init__(self, place: str, is_ordered: bool = True, checked: bool = False):
        self.place, self.is_ordered, self.checked = place, is_ordered, checked

    def exchange(
        self, requests: Sequence[tuple[str, Any]], share: Share, labels: Sequence[Any] = (), is_last: bool = False
    ) -> list[Any]:
        import tensorflow as tf

        made: list[Any] = [None] * len(requests)
        labels = labels or [None] * len(requests)
        before: list[Any] = []
        for indices, checked in self._list_sums(requests, labels, is_last):
            tensors = [requests[index][1] for index in indices] or [tf.zeros([])]
            names, numbers = name_sums(tensors, [labels[index] for index in indices] or [None])
            is_update = is_last and not before
            weight = [tf.cast(one, tf.float64) for one in (share.contributes, share.total)]
            with tf.control_dependencies(before if not self.is_ordered else []):
                summed = ops.reduce_gradients(tensors, names, tf.stack(weight), self.place, checked, numbers, is_update)
            for index, one in zip(indices, summed):
                made[index] = one
            before = [summed[0].op]
        before = [] if self.is_ordered else before
        for index, (kind, tensor) in enumerate(requests):
            if made[index] is None:
                exchange = self._gather if kind == "gather" else self._reduce
                with tf.control_dependencies(before):
                    made[index] = exchange(kind, tensor, share)
                before = [] if self.is_ordered else [made[index].op]
                if kind == "gather" and world.get_world().is_phantom:
                    made[index] = _keep_rows(made[index], tensor, share)
            shape = tensor.shape
            made[index].set_shape([None, *shape[1:]] if kind == "gather" and shape.rank else shape)
        return made

    def _list_sums(
        self, requests: Sequence[tuple[str, Any]], labels: Sequence[Any], is_last: bool
    ) -> list[tuple[list[int], bool]]:
        """Which of these travel in one message, and whether it is checked: then only gradients are in it.

        An update without a sum is one of gradients that are gathered.
        """
        sums = [
            index for index, (kind, tensor) in enumerate(requests) if kind == "sum" and tensor.dtype.name in _SUMMED
        ]
        of_gradients = [index for index in sums if self.checked and labels[index] is not None]
        others = [index for index in sums if index not in of_gradients]
        found = [(of_gradients, True)] if of_gradients else []
        return [*found, (others, False)] if others or (is_last and not of_gradients) else found

    def _reduce(self, kind: str, tensor: Any, share: Share) -> Any:
        """A sum of whole numbers, or an extreme, of those ranks that contribute."""
        import tensorflow as tf

        dtype = tensor.dtype
        if dtype.is_complex:
            parts = tf.stack([tf.math.real(tensor), tf.math.imag(tensor)])
            return tf.complex(*tf.unstack(self._reduce(kind, parts, share)))
        if dtype.is_bool:
            return tf.cast(self._reduce(kind, tf.cast(tensor, tf.int32), share), tf.bool)
        if dtype.name not in _REDUCED:
            return tf.cast(self._reduce(kind, tf.cast(tensor, tf.int64), share), dtype)
        neutral = 0 if kind == "sum" else dtype.max if kind == "min" else dtype.min
        if kind != "sum" and dtype.is_floating:
            neutral = float("inf") if kind == "min" else -float("inf")
        given = tf.where(share.contributes, tensor, tf.constant(neutral, dtype))
        return ops.allreduce(given, kind, name=f"{self.place}: {tensor.op.name}")

    def _gather(self, kind: str, tensor: Any, share: Share) -> Any:
        import tensorflow as tf

        rows = tf.cond(share.contributes, lambda: tensor, lambda: tensor[:0])
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


def _keep_rows(copies: Any, mine: Any, share: Share) -> Any:
    """As many rows as all ranks have: those that are not there give copies of rank 0's, which may have one more."""
    import tensorflow as tf

    return copies[: tf.shape(mine, tf.int64)[0] * share.total // share.count]


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
