"""The collectives of one wave of a copied step: the requests that can travel at the same time.

A request is a sum, maximum or minimum of one tensor over the ranks, or gathers its rows (`sharing.Request`). All
floating-point sums travel in one message; gradients that are checked for finite values have a message of their own.
Requests to which every rank contributes, even without rows (`Request.owned`), are joined by kind and dtype. Every other
request is one message. A request with a label is for a gradient, which the label names (`gradients.Label`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from matex_tf import ops, settings
from matex_tf.lazy import tf
from matex_tf.ops import overlap
from matex_tf.rewrite.sharing import Exchanger, Publication, Request, Slice, cut_piece
from matex_tf.steps import publishing
from matex_tf.steps.gradients import name_sums
from matex_tf.world import world

_SUMMED = ("float16", "bfloat16", "float32", "float64")
_REDUCED = (*_SUMMED, "int32", "int64")
_GATHERED = (*_REDUCED, "uint8", "bool")
_BYTE_VALUES = 256
Message = tuple[list[int], Callable[[Sequence[Request], Slice], list[Any]]]
"""The indices of the requests of a message, and the function that exchanges them."""


class RankExchanger(Exchanger):
    """The collectives of the ranks over MPI.

    place: names the step in messages.
    is_ordered: collectives run in the order of their creation, as in functions that eager code calls. A session runs
        ops in any order.
    checked: a gradient that is not finite is an error.

    The number of rows of the batch travels with the sums, so ranks whose batches have different numbers raise an error.
    The last sums with gradients of a step count, and are recorded, as one update. If updates are overlapped, so that
    gradients travel while the step computes others (`overlap`), gradients of earlier waves are parts of that update.
    """

    def __init__(self, place: str, is_ordered: bool = True, checked: bool = False):
        self.place, self.is_ordered, self.checked = place, is_ordered, checked
        self._weights: dict[tuple[int, int, bool], tuple[Slice, Any]] = {}  # see `_find_weight`
        # By ids of graphs: the name of the overlapped update of which a part was built, and the last part was not.
        self._open_updates: dict[int, str] = {}

    @property
    def rank(self) -> int:
        return world.get_world().rank

    @property
    def sums_early(self) -> bool:
        return self.is_ordered and overlap.is_chosen()

    def exchange(self, requests: Sequence[Request], batch_slice: Slice, is_last: bool = False) -> list[Any]:
        results: list[Any] = [None] * len(requests)
        last_ops: list[Any] = []  # of the message before
        for indexes, exchange_message in self._list_messages(requests, is_last):
            # Control edges order the messages if the copy does not order all collectives.
            with contextlib.nullcontext() if self.is_ordered else tf.control_dependencies(last_ops):
                exchanged = exchange_message([requests[index] for index in indexes], batch_slice)
            last_ops = [tensor.op for tensor in exchanged]
            for index, tensor in zip(indexes, exchanged):
                results[index] = tensor
        for request, result in zip(requests, results):
            shape = request.tensor.shape
            if not request.cuts:
                result.set_shape([None, *shape[1:]] if request.kind == "gather" and shape.rank else shape)
        return results

    def can_publish(self, handle: Any, dtype: Any) -> bool:
        return publishing.can_publish(handle, dtype)

    def publish(self, publications: Sequence[Publication]) -> list[Any]:
        return publishing.publish(publications, self.place)

    def _list_messages(self, requests: Sequence[Request], is_last: bool) -> Iterator[Message]:
        """The messages of a wave. Floating-point sums come first; the first message of the last wave counts the update.

        So the last wave has a message of sums even without a sum: the update then consists of gathered gradients.
        """
        # Indices of floating-point sums:
        early = list[int]()  # of gradients for which the next wave need not wait: a part of an overlapped update
        checked = list[int]()  # of other gradients, if gradients are checked for finite values
        inline = list[int]()  # of the last wave, with unknown shapes: one of them would keep `sums` from overlapping
        sums = list[int]()  # all other sums
        # Indices of other requests, each with a message of its own; and of `owned` requests, by kind and dtype:
        single = list[int]()
        owned: dict[tuple[str, str], list[int]] = {}
        for index, request in enumerate(requests):
            if request.owned:
                owned.setdefault((request.kind, request.tensor.dtype.name), []).append(index)
            elif request.kind != "sum" or request.tensor.dtype.name not in _SUMMED:
                single.append(index)
            elif request.label is not None and request.can_wait and not is_last and self._is_overlapped(request):
                early.append(index)
            elif self.checked and request.label is not None:
                checked.append(index)
            elif is_last and self.sums_early and not self._is_overlapped(request):
                inline.append(index)
            else:
                sums.append(index)

        def add_up(indexes: list[int], *, checked: bool, is_update: bool, has_more: bool = False) -> Message:
            return indexes, functools.partial(self._add_up, checked=checked, is_update=is_update, has_more=has_more)

        if early:
            yield add_up(early, checked=self.checked, is_update=True, has_more=True)
        if checked:
            yield add_up(checked, checked=True, is_update=is_last)
        is_update = is_last and not checked
        if sums or is_update:
            yield add_up(sums, checked=False, is_update=is_update)
        if inline:
            yield add_up(inline, checked=False, is_update=False)
        for index in single:
            yield [index], self._gather_one if requests[index].kind == "gather" else self._reduce_one
        for (kind, _), indexes in owned.items():
            yield indexes, self._gather_pieces if kind == "gather" else self._reduce_numbers

    def _add_up(
        self, requests: Sequence[Request], batch_slice: Slice, checked: bool, is_update: bool, has_more: bool = False
    ) -> list[Any]:
        """Floating-point sums, in one message; a sum of 0 if there are no requests.

        is_update: the message also carries the number of rows of the batch, and counts as an update of the weights.
        has_more: it is a part of an overlapped update, of which further parts follow.
        """
        requests = requests or [Request("sum", tf.zeros([]))]
        tensors = [request.tensor for request in requests]
        names, numbers = name_sums(tensors, [request.label for request in requests])
        weight = self._find_weight(batch_slice, is_update)
        cuts = [request.cuts for request in requests]  # the boundaries of the ranks' pieces; (): no pieces
        # With `sent_cuts`, the message may bring each rank its pieces only. An elastic run needs complete sums.
        sent_cuts = [] if settings.get_settings().elastic or not any(cuts) else cuts
        graph_id = id(tf.compat.v1.get_default_graph())
        if has_more:
            part_of = self._open_updates.setdefault(graph_id, f"{names[0]} and others")
        else:
            part_of = self._open_updates.pop(graph_id, "") if is_update else ""
        sums = ops.reduce_gradients(
            tensors, names, weight, self.place, checked, numbers, is_update, sent_cuts, part_of, has_more
        )
        return [self._cut(total, cuts_of_sum) for total, cuts_of_sum in zip(sums, cuts)]

    def _is_overlapped(self, request: Request) -> bool:
        """Whether an update with this sum is overlapped."""
        return self.is_ordered and overlap.is_chosen([request.tensor])

    def _find_weight(self, batch_slice: Slice, is_update: bool) -> Any:
        """The weight of this rank's terms, 0 if it has no rows, else 1: one tensor for all sums of a graph."""
        key = id(tf.compat.v1.get_default_graph()), id(batch_slice), is_update
        if key not in self._weights:
            with tf.control_dependencies(None):
                weight = ops.make_weight(batch_slice.contributes, batch_slice.total if is_update else None)
            self._weights[key] = batch_slice, weight  # keeps the slice alive, so that its id stays unique
        return self._weights[key][1]

    def _cut(self, tensor: Any, cuts: tuple[int, ...]) -> Any:
        """This rank's piece, if there are cuts."""
        return cut_piece(tensor, cuts, self.rank) if cuts else tensor

    def _reduce_one(self, requests: Sequence[Request], batch_slice: Slice) -> list[Any]:
        (request,) = requests
        return [self._cut(self._reduce(request.kind, request.tensor, batch_slice.contributes), request.cuts)]

    def _gather_one(self, requests: Sequence[Request], batch_slice: Slice) -> list[Any]:
        tensor = requests[0].tensor
        gathered_rows = self._gather(tensor, batch_slice.contributes)
        # In `matex plan` the other ranks do not exist (`is_phantom`). The gathered rows are then a copy of this rank's
        # rows for each rank, and the batch may have fewer rows.
        if world.get_world().is_phantom:
            gathered_rows = gathered_rows[: tf.shape(tensor, tf.int64)[0] * batch_slice.total // batch_slice.count]
        return [gathered_rows]

    def _reduce_numbers(self, requests: Sequence[Request], _: Slice) -> list[Any]:
        """Numbers of which each rank has a part, with or without rows: in one message."""
        tensors = [request.tensor for request in requests]
        flat_tensor = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
        reduced = self._reduce(requests[0].kind, flat_tensor, tf.constant(True))
        parts = tf.split(reduced, [tensor.shape.num_elements() for tensor in tensors])
        return [tf.reshape(part, tensor.shape) for part, tensor in zip(parts, tensors)]

    def _gather_pieces(self, requests: Sequence[Request], _: Slice) -> list[Any]:
        """Gathers pieces in one message: the pieces of rank 0, then the pieces of rank 1, and so on."""
        gathered_pieces = self._gather(tf.concat([request.tensor for request in requests], 0), tf.constant(True))
        sizes_of_requests = [[end - start for start, end in itertools.pairwise(request.cuts)] for request in requests]
        sizes = [size for sizes_of_rank in zip(*sizes_of_requests) for size in sizes_of_rank]
        pieces = tf.split(tf.ensure_shape(gathered_pieces, [sum(sizes)]), sizes)
        # Every len(requests)-th piece is of the same request.
        return [tf.concat(pieces[index :: len(requests)], 0) for index in range(len(requests))]

    def _reduce(self, kind: str, tensor: Any, contributes: Any) -> Any:
        """An integer sum, or an extreme, over the ranks that contribute."""
        carried, restore = _carry(tensor, _REDUCED)
        term = tf.where(contributes, carried, tf.constant(find_neutral(kind, carried.dtype), carried.dtype))
        return restore(ops.allreduce(term, kind, name=f"{self.place}: {tensor.op.name}"))

    def _gather(self, tensor: Any, contributes: Any) -> Any:
        rows = tf.cond(contributes, lambda: tensor, lambda: tensor[:0])
        rows.set_shape(tf.TensorShape([None]).concatenate(tensor.shape[1:]))  # also if the rank is unknown
        name = f"{self.place}: {tensor.op.name}"
        if tensor.dtype == tf.string:
            return _gather_strings(rows, name)
        carried, restore = _carry(rows, _GATHERED)
        return restore(ops.allgather(carried, name))


def _carry(tensor: Any, dtypes: Sequence[str]) -> tuple[Any, Callable[[Any], Any]]:
    """The tensor as one of `dtypes`, in which messages carry it, and the function that restores its own dtype."""
    dtype = tensor.dtype
    if dtype.is_complex:
        stacked_parts = tf.stack([tf.math.real(tensor), tf.math.imag(tensor)], -1)
        return stacked_parts, lambda result: tf.complex(result[..., 0], result[..., 1])
    if dtype.name in dtypes:
        return tensor, lambda result: result
    return tf.cast(tensor, tf.int64), lambda result: tf.cast(result, dtype)


def find_neutral(kind: str, dtype: Any) -> Any:
    """The term that changes no "sum", "min" or "max" (`kind`), for ranks without rows."""
    if kind == "sum":
        return 0
    if dtype.is_bool:
        return kind == "min"
    if dtype.is_floating:
        return float("inf") if kind == "min" else -float("inf")
    return dtype.max if kind == "min" else dtype.min


def _gather_strings(rows: Any, name: str) -> Any:
    """Gathers strings as their bytes and lengths, from which it cuts the strings: messages carry no strings."""
    shape = tf.shape(rows, tf.int64)
    flat_strings = tf.reshape(rows, [-1])
    lengths = ops.allgather(tf.strings.length(flat_strings), name)
    with tf.control_dependencies([lengths.op]):
        byte_values = ops.allgather(tf.io.decode_raw(tf.strings.reduce_join(flat_strings), tf.uint8), name)
    letters = tf.constant([bytes([code]) for code in range(_BYTE_VALUES)])
    joined_string = tf.strings.reduce_join(tf.gather(letters, tf.cast(byte_values, tf.int32)))
    starts = tf.cumsum(lengths, exclusive=True)
    strings = tf.strings.substr(tf.fill(tf.shape(starts), joined_string), starts, lengths)
    return tf.reshape(strings, tf.concat([[-1], shape[1:]], 0))
