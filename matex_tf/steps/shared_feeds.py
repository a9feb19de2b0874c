"""Batches that a step takes within its graph, from iterators and datasets that ranks share.

In place of a batch, the graph takes a `batches.Element`. It has the rows that this rank has prepared ahead of time. If
the step needs other rows, because slice ratios have changed, the rank makes these rows from the element's ticket. The
*feed* of the iterator (`rewrite.feeds`) lets the copy take elements.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.feeds import SharedFeed
from matex_tf.rewrite.placement import FedHandle
from matex_tf.rewrite.sharing import Request, Slice
from matex_tf.steps import slices
from matex_tf.steps.batch_watch import BatchWatch
from matex_tf.steps.batches import Dealer, find_dealt, pad_alike, read_element, slice_rows
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

    def _take(self, copy: Any, tensors: list[Any]) -> tuple[list[Any], Slice]:
        """This rank's rows of the batch of an element with these tensors, and its slice; in a graph."""
        element, dealer = read_element(tensors, len(self._are_rows)), self._dealer
        # `open` runs in each call, by the dealer of that call.
        self._watch.keep_if_asked(tensors, lambda *values: self._dealer.open(values))
        counts = [tf.shape(component)[0] for component in itertools.compress(element.rows, self._are_rows)]
        total = slices.require(element.is_even, [slices.UNEVEN, tf.stack(counts)], element.total)
        batch_slice = slices.make_slice_of_rows(total, self._slice_ratios)  # the slice that the step takes
        # The rows of this slice have been prepared, unless slices have changed since (`slices.may_change`).
        is_prepared = element.has_prepared(batch_slice)

        def cut_rows() -> list[Any]:
            first = slices.require(is_prepared, [_OTHER_SLICE], batch_slice.first - element.first)
            return slice_rows(element.rows, self._are_rows, first, batch_slice.count)

        def make_rows() -> list[Any]:
            return dealer.take(element.ticket, batch_slice)

        rows = tf.nest.flatten(tf.cond(is_prepared, cut_rows, make_rows) if slices.may_change() else cut_rows())
        for tensor, prepared_tensor in zip(rows, element.rows):
            tensor.set_shape(prepared_tensor.shape)

        def find_longest(sizes: Any) -> Any:
            return self._exchanger.exchange([Request("max", sizes, owned=True)], batch_slice)[0]

        return pad_alike(rows, self._pads, find_longest), batch_slice


def list_feeds(handles: Sequence[Any], *arguments: Any) -> list[StepFeed | None]:
    """For each eager tensor that a step takes, the feed of its shared batches; None if it gives none.

    arguments: of `StepFeed`, after the dealer.
    """
    replacements = map(find_dealt, handles)
    return [None if dealt is None else StepFeed(dealt.dealer, *arguments) for dealt in replacements]


def find_handles(handles: Sequence[Any], feeds: Sequence[StepFeed | None]) -> list[Any]:
    """The tensors that a copy takes for tensors that stand for iterators and datasets with these feeds."""
    return [handle if feed is None else feed.find_handle(handle) for handle, feed in zip(handles, feeds)]
