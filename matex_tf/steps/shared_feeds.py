"""Batches that a step takes within its graph, from iterators and datasets that ranks share.

In place of a batch, the graph takes an *element* (`batches.Dealer`). It has the rows that this rank has prepared ahead
of time, and a *ticket*, a cheap stand-in for the batch (`input.tickets`). If the step needs other rows, because slice
ratios have changed, the rank makes these rows from the ticket. The *feed* of the iterator (`rewrite.feeds`) lets the
copy take elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.feeds import SharedFeed
from matex_tf.rewrite.placement import FedHandle
from matex_tf.rewrite.sharing import Request, Slice
from matex_tf.steps import slices
from matex_tf.steps.batch_watch import BatchWatch
from matex_tf.steps.batches import NUMBERS, Dealer, find_dealt
from matex_tf.steps.exchanger import RankExchanger

_OTHER_SLICE = "a batch was prepared for another slice than its step takes; please report this"


class StepFeed:
    """The shared batches of one input of a step, a tensor (handle) that stands for an iterator or dataset of batches.

    dealer: makes batches of elements; each call sets the dealer of its own iterator.
    watch: keeps some batches, which are compared between ranks after the call.
    slice_ratios: the ratios of the ranks' slices; None: all slices are equal.
    placement: the placement of the input, which has the feed.
    """

    def __init__(self, dealer: Dealer, watch: BatchWatch, slice_ratios: slices.SliceRatios | None, place: str):
        self._dealer, self._watch, self._slice_ratios = dealer, watch, slice_ratios
        self._exchanger = RankExchanger(place)
        # Which tensors of a batch have rows; padding values by index of tensor. All dealers of the input have the same.
        self._are_rows, self._pads = dealer.are_rows, dict(dealer.pads)
        feed = SharedFeed(dealer.specs, self._are_rows, bool(self._pads), self._take)
        self.placement = FedHandle(feed)

    def find_handle(self, handle: Any) -> Any:
        """The handle of elements that a copy takes in place of this handle of whole batches, in the next call."""
        dealt = find_dealt(handle)
        self._dealer = dealt.dealer
        # It begins to prepare this rank's rows.
        self._dealer.work_on(None if self._slice_ratios is None else self._slice_ratios.list_ratios())
        return dealt.handle

    def _take(self, copy: Any, element: list[Any]) -> tuple[list[Any], Slice]:
        """This rank's rows of the batch of an element, and its slice; in a graph."""
        # `NUMBERS` scalars, the rows from `first` to `first + count` of a batch of `total` rows, and the ticket.
        first, count, total = element[:3]
        rows_end = NUMBERS + len(self._are_rows)
        prepared, ticket, dealer = element[NUMBERS:rows_end], element[rows_end:], self._dealer
        # All components must have equally many rows. If components of the ticket have not, the batch is prepared whole:
        # `count` is the length of the longest, `total` of the first, and a map may have dropped either.
        tensors_with_rows = [tensor for tensor, has_rows in zip(prepared, self._are_rows) if has_rows]
        counts = tf.stack([tf.shape(tensor, tf.int64)[0] for tensor in tensors_with_rows])
        total = tf.where(tf.equal(first, 0) & (count >= total), counts[0], total)
        is_even = tf.reduce_all(tf.equal(counts, counts[0]))
        # `open` runs in each call, by the dealer of that call.
        self._watch.keep_if_asked(element, lambda *tensors: self._dealer.open(tensors))
        total = slices.require(is_even, [slices.UNEVEN, counts], total)
        batch_slice = slices.make_slice_of_rows(total, self._slice_ratios)  # the slice that the step takes
        slice_end = batch_slice.first + batch_slice.count
        # The rows of this slice have been prepared, unless slices have changed since (`slices.may_change`).
        are_prepared = (first <= batch_slice.first) & (slice_end <= first + count)

        def cut_rows() -> list[Any]:
            start = slices.require(are_prepared, [_OTHER_SLICE], batch_slice.first - first)
            stop = slice_end - first
            prepared_and_flags = zip(prepared, self._are_rows)
            return [tensor[start:stop] if has_rows else tf.identity(tensor) for tensor, has_rows in prepared_and_flags]

        def make_rows() -> list[Any]:
            return dealer.take(ticket, batch_slice.first, batch_slice.count, total)

        rows = tf.nest.flatten(tf.cond(are_prepared, cut_rows, make_rows) if slices.may_change() else cut_rows())
        for tensor, prepared_tensor in zip(rows, prepared):
            tensor.set_shape(prepared_tensor.shape)
        return self._pad_alike(rows, batch_slice), batch_slice

    def _pad_alike(self, rows: list[Any], batch_slice: Slice) -> list[Any]:
        """The rows, padded to the longest row of all ranks. Collective if the script pads the batch."""
        if not self._pads:
            return rows
        sizes = {index: tf.shape(rows[index], tf.int64) for index in self._pads}
        request = Request("max", tf.concat(list(sizes.values()), 0), owned=True)
        (longest_sizes,) = self._exchanger.exchange([request], batch_slice)
        padded, start = list(rows), 0  # the sizes of a tensor in `longest_sizes` begin at `start`
        for index, value in self._pads.items():
            end = start + rows[index].shape.rank
            missing = tf.concat([[0], longest_sizes[start + 1 : end] - sizes[index][1:]], 0)
            paddings = tf.stack([tf.zeros_like(missing), missing], 1)
            padded[index] = tf.pad(rows[index], paddings, constant_values=value)
            start = end
        return padded


def list_feeds(handles: Sequence[Any], *arguments: Any) -> list[StepFeed | None]:
    """For each eager tensor that a step takes, the feed of its shared batches; None if it gives none.

    arguments: of `StepFeed`, after the dealer.
    """
    replacements = map(find_dealt, handles)
    return [None if dealt is None else StepFeed(dealt.dealer, *arguments) for dealt in replacements]


def find_handles(handles: Sequence[Any], feeds: Sequence[StepFeed | None]) -> list[Any]:
    """The tensors that a copy takes for tensors that stand for iterators and datasets with these feeds."""
    return [handle if feed is None else feed.find_handle(handle) for handle, feed in zip(handles, feeds)]
