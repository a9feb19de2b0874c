"""Batches that a step takes within its graph, from iterators and datasets that ranks share.

All ranks take the same elements: a ticket of the batch, and the rows that this rank has prepared ahead of time. If the
step needs other rows, because slice ratios have changed, the rank makes these rows from the ticket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.feeds import SharedFeed
from matex_tf.rewrite.placement import REPLICATED, Placement
from matex_tf.rewrite.sharing import Request, Slice
from matex_tf.steps import slices
from matex_tf.steps.batch_watch import BatchWatch
from matex_tf.steps.batches import NUMBERS, Dealer, find_dealt
from matex_tf.steps.exchanger import RankExchanger


class StepFeed:
    """The shared batches that one input of a step gives. The input stands for an iterator or dataset of whole batches.

    placement: the placement of the input, which has the feed.
    """

    def __init__(self, dealer: Dealer, watch: BatchWatch, slice_ratios: slices.SliceRatios | None, place: str):
        self._dealer, self._watch, self._slice_ratios = dealer, watch, slice_ratios
        self._exchanger = RankExchanger(place)
        self._specs, self._are_rows, self._pads = dealer.specs, dealer.are_rows, dict(dealer.pads)
        feed = SharedFeed(self._specs, self._are_rows, bool(self._pads), self._take)
        self.placement = Placement(REPLICATED, feed=feed)

    def find_handle(self, handle: Any) -> Any:
        """The handle of elements that a copy takes in place of this handle of whole batches, in the next call."""
        dealt = find_dealt(handle)
        self._dealer = dealt.dealer
        self._dealer.work_on(None if self._slice_ratios is None else self._slice_ratios.list_ratios())
        return dealt.handle

    def _take(self, copy: Any, element: list[Any]) -> tuple[list[Any], Slice]:
        """This rank's rows of the batch of an element, and its slice; in a graph."""
        first, count, total = element[:3]
        end = NUMBERS + len(self._are_rows)
        prepared, ticket, dealer = element[NUMBERS:end], element[end:], self._dealer
        counts = tf.stack(
            [tf.shape(tensor, tf.int64)[0] for tensor, has_rows in zip(prepared, self._are_rows) if has_rows]
        )
        is_even = tf.reduce_all(tf.equal(counts, counts[0])) & (count <= total)
        self._watch.keep(element, lambda *tensors: self._dealer.open(tensors))
        check = tf.debugging.Assert(is_even, [slices.UNEVEN, counts], summarize=-1)
        with tf.control_dependencies([] if check is None else [check]):
            batch_slice = slices.make_slice_of_rows(tf.identity(total), self._slice_ratios)
        slice_end = batch_slice.first + batch_slice.count
        are_prepared = (first <= batch_slice.first) & (slice_end <= first + count)

        def cut_rows() -> list[Any]:
            check = tf.debugging.Assert(are_prepared, [_OTHER_SLICE])
            with tf.control_dependencies([] if check is None else [check]):
                start, end = batch_slice.first - first, slice_end - first
            return [
                tensor[start:end] if has_rows else tf.identity(tensor)
                for tensor, has_rows in zip(prepared, self._are_rows)
            ]

        def make_rows() -> list[Any]:
            return dealer.take(ticket, batch_slice.first, batch_slice.count, total)

        rows = _choose(are_prepared, cut_rows, make_rows) if slices.may_change() else cut_rows()
        for tensor, prepared_tensor in zip(rows, prepared):
            tensor.set_shape(prepared_tensor.shape)
        return self._pad_alike(rows, batch_slice), batch_slice

    def _pad_alike(self, rows: list[Any], batch_slice: Slice) -> list[Any]:
        """The rows, padded to the longest row of all ranks. They are padded to the longest row of this rank already.

        Collective if the batch is padded.
        """
        if not self._pads:
            return rows
        sizes = {index: tf.shape(rows[index], tf.int64) for index in self._pads}
        (longest,) = self._exchanger.exchange(
            [Request("max", tf.concat(list(sizes.values()), 0))], batch_slice.of_all()
        )
        padded, start = list(rows), 0
        for index, value in self._pads.items():
            end = start + rows[index].shape.rank
            missing = tf.concat([[0], longest[start + 1 : end] - sizes[index][1:]], 0)
            paddings = tf.stack([tf.zeros_like(missing), missing], 1)
            padded[index] = tf.pad(rows[index], paddings, constant_values=value)
            start = end
        return padded


_OTHER_SLICE = "a batch was prepared for another slice than its step takes; please report this"


def _choose(condition: Any, first: Any, second: Any) -> list[Any]:
    chosen = tf.cond(condition, first, second)
    return list(chosen) if isinstance(chosen, (list, tuple)) else [chosen]


def list_feeds(
    handles: Sequence[Any], watch: BatchWatch, slice_ratios: slices.SliceRatios | None, place: str
) -> list[StepFeed | None]:
    """For each eager tensor that a step takes, the feed of its shared batches; None if it gives none."""
    found = map(find_dealt, handles)
    return [None if dealt is None else StepFeed(dealt.dealer, watch, slice_ratios, place) for dealt in found]
