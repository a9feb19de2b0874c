"""The collectives of one wave of a copied step: all floating-point sums in one message, others one by one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from matex_tf import ops, settings
from matex_tf.lazy import tf
from matex_tf.rewrite.sharing import Publication, Request, Slice, cut_piece
from matex_tf.steps import publishing
from matex_tf.steps.gradients import name_sums
from matex_tf.world import world

_SUMMED = ("float16", "bfloat16", "float32", "float64")
_REDUCED = (*_SUMMED, "int32", "int64")
_GATHERED = (*_REDUCED, "uint8", "bool")
_BYTES = 256


class RankExchanger:
    """Implements `rewrite.sharing.Exchanger` over MPI.

    place: names the step in messages.
    is_ordered: collectives run in the order of their creation, see `rewrite.emit.Copy`.
    checked: a gradient that is not finite is an error.

    The number of rows of the batch travels with the sums, so ranks whose batches have different numbers raise an error.
    The last sums with gradients of a step count, and are recorded, as one update.
    """

    def __init__(self, place: str, is_ordered: bool = True, checked: bool = False):
        self.place, self.is_ordered, self.checked = place, is_ordered, checked
        self._weights: dict[tuple[int, int, bool], tuple[Slice, Any]] = {}

    @property
    def rank(self) -> int:
        return world.get_world().rank

    def exchange(
        self, requests: Sequence[Request], batch_slice: Slice, labels: Sequence[Any] = (), is_last: bool = False
    ) -> list[Any]:
        made: list[Any] = [None] * len(requests)
        labels = labels or [None] * len(requests)
        before: list[Any] = []
        for indexes, checked in self._list_sums(requests, labels, is_last):
            given = [requests[index] for index in indexes]
            with tf.control_dependencies(before if not self.is_ordered else []):
                summed, op = self._add_up(
                    given, batch_slice, [labels[index] for index in indexes], checked, is_last and not before
                )
            for index, one in zip(indexes, summed):
                made[index] = one
            before = [op]
        before = [] if self.is_ordered else before
        for indexes, exchange in _group(requests, made):
            with tf.control_dependencies(before):
                found = exchange(self, [requests[index] for index in indexes], batch_slice)
            before = [] if self.is_ordered else [one.op for one in found]
            for index, one in zip(indexes, found):
                made[index] = one
        for (kind, tensor, cuts, _), one in zip(requests, made):
            if not cuts:
                one.set_shape([None, *tensor.shape[1:]] if kind == "gather" and tensor.shape.rank else tensor.shape)
        return made

    def can_publish(self, handle: Any, dtype: Any) -> bool:
        return publishing.can_publish(handle, dtype)

    def publish(self, publications: Sequence[Publication]) -> list[Any]:
        return publishing.publish(publications, self.place)

    def _list_sums(
        self, requests: Sequence[Request], labels: Sequence[Any], is_last: bool
    ) -> list[tuple[list[int], bool]]:
        """The requests that travel in one message, and whether that is checked: then it holds gradients only.

        An update without a sum consists of gathered gradients.
        """
        sums = [
            index
            for index, one in enumerate(requests)
            if one.kind == "sum" and not one.owned and one.tensor.dtype.name in _SUMMED
        ]
        of_gradients = [index for index in sums if self.checked and labels[index] is not None]
        others = [index for index in sums if index not in of_gradients]
        found = [(of_gradients, True)] if of_gradients else []
        return [*found, (others, False)] if others or (is_last and not of_gradients) else found

    def _add_up(
        self, requests: Sequence[Request], batch_slice: Slice, labels: Sequence[Any], checked: bool, is_update: bool
    ) -> tuple[list[Any], Any]:
        """Floating-point sums, in one message, and the op of the message."""
        tensors = [one.tensor for one in requests] or [tf.zeros([])]
        names, numbers = name_sums(tensors, labels or [None])
        weight = self._find_weight(batch_slice, is_update)
        cuts = [one.cuts for one in requests]
        given = [] if settings.get_settings().elastic or not any(cuts) else cuts
        summed = ops.reduce_gradients(tensors, names, weight, self.place, checked, numbers, is_update, given)
        return [self._cut(one, cut) for one, cut in zip(summed, cuts)], summed[0].op

    def _find_weight(self, batch_slice: Slice, is_update: bool) -> Any:
        """The weight of this rank's terms: one tensor for all sums of a graph."""
        key = id(tf.compat.v1.get_default_graph()), id(batch_slice), is_update
        if key not in self._weights:
            with tf.control_dependencies(None):
                # Keeps the slice alive, so that its id stays unique.
                self._weights[key] = (
                    batch_slice,
                    ops.make_weight(batch_slice.contributes, batch_slice.total if is_update else None),
                )
        return self._weights[key][1]

    def _cut(self, tensor: Any, cuts: tuple[int, ...]) -> Any:
        """This rank's piece, if there are cuts."""
        return cut_piece(tensor, cuts, self.rank) if cuts else tensor

    def _reduce_one(self, requests: Sequence[Request], batch_slice: Slice) -> list[Any]:
        (one,) = requests
        return [self._cut(self._reduce(one.kind, one.tensor, batch_slice.contributes), one.cuts)]

    def _gather_one(self, requests: Sequence[Request], batch_slice: Slice) -> list[Any]:
        tensor = requests[0].tensor
        whole = self._gather(tensor, batch_slice.contributes)
        return [_keep_rows(whole, tensor, batch_slice) if world.get_world().is_phantom else whole]

    def _reduce_numbers(self, requests: Sequence[Request], _: Slice) -> list[Any]:
        """Numbers of which each rank has a part, with or without rows: in one message."""
        parts = [tf.reshape(one.tensor, [-1]) for one in requests]
        whole = self._reduce(requests[0].kind, tf.concat(parts, 0), tf.constant(True))
        sizes = [one.tensor.shape.num_elements() for one in requests]
        return [tf.reshape(one, given.tensor.shape) for one, given in zip(tf.split(whole, sizes), requests)]

    def _gather_pieces(self, requests: Sequence[Request], _: Slice) -> list[Any]:
        """Gathers pieces in one message."""
        whole = self._gather(tf.concat([one.tensor for one in requests], 0), tf.constant(True))
        owned = [[last - first for first, last in itertools.pairwise(one.cuts)] for one in requests]
        sizes = [size for of_rank in zip(*owned) for size in of_rank]
        parts = tf.split(tf.ensure_shape(whole, [sum(sizes)]), sizes)
        return [tf.concat(parts[at :: len(requests)], 0) for at in range(len(requests))]

    def _reduce(self, kind: str, tensor: Any, contributes: Any) -> Any:
        """An integer sum, or an extreme, over the ranks that contribute."""
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

    def _gather(self, tensor: Any, contributes: Any) -> Any:
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


def _keep_rows(copies: Any, mine: Any, batch_slice: Slice) -> Any:
    """As many rows as all ranks have; missing ones are copies of rank 0's, which may have one row more."""
    return copies[: tf.shape(mine, tf.int64)[0] * batch_slice.total // batch_slice.count]


def _group(requests: Sequence[Request], made: Sequence[Any]) -> Iterator[tuple[list[int], Callable[..., list[Any]]]]:
    """The indices of requests that travel in one message, and the method that exchanges them."""
    together: dict[tuple[str, str], list[int]] = {}
    for index, one in enumerate(requests):
        if made[index] is None:
            if one.owned:
                together.setdefault((one.kind, one.tensor.dtype.name), []).append(index)
            else:
                yield [index], RankExchanger._gather_one if one.kind == "gather" else RankExchanger._reduce_one
    for (kind, _), indexes in together.items():
        yield indexes, RankExchanger._gather_pieces if kind == "gather" else RankExchanger._reduce_numbers


def _gather_strings(rows: Any, name: str) -> Any:
    """Gathers strings as their bytes and lengths."""
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
