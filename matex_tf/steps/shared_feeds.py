"""Batches that a step takes within its graph, of iterators and datasets that ranks share: each makes its rows only.

All ranks take the same elements. Each has worked ahead on its rows, or makes rows anew where others are due.
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
    """What one input of a step gives, whose handle has been given to functions as one of whole batches.

    placement: of the input.
    """

    def __init__(self, dealer: Dealer, watch: BatchWatch, parts: slices.SliceRatios | None, place: str):
        self._dealer, self._watch, self._parts = dealer, watch, parts
        self._exchanger = RankExchanger(place)
        self._specs, self._are_rows, self._pads = dealer.specs, dealer.are_rows, dict(dealer.pads)
        feed = SharedFeed(self._specs, self._are_rows, bool(self._pads), self._take)
        self.placement = Placement(REPLICATED, feed=feed)

    def find_handle(self, handle: Any) -> Any:
        """What a copy takes in the place of a handle. The next call takes its elements."""
        dealt = find_dealt(handle)
        self._dealer = dealt.dealer
        self._dealer.work_on(None if self._parts is None else self._parts.list_ratios())
        return dealt.handle

    def _take(self, copy: Any, made: list[Any]) -> tuple[list[Any], Slice]:
        """This rank's rows of a batch, and its slice; in a graph."""
        first, count, total = made[:3]
        end = NUMBERS + len(self._are_rows)
        own, ticket, dealer = made[NUMBERS:end], made[end:], self._dealer
        counts = tf.stack([tf.shape(one, tf.int64)[0] for one, is_rows in zip(own, self._are_rows) if is_rows])
        is_even = tf.reduce_all(tf.equal(counts, counts[0])) & (count <= total)
        self._watch.keep(made, lambda *given: self._dealer.open(given))
        check = tf.debugging.Assert(is_even, [slices.UNEVEN, counts], summarize=-1)
        with tf.control_dependencies([] if check is None else [check]):
            batch_slice = slices.make_slice_of_rows(tf.identity(total), self._parts)
        last = batch_slice.first + batch_slice.count

        def cut() -> list[Any]:
            is_inside = tf.debugging.Assert((first <= batch_slice.first) & (last <= first + count), [_OTHERS])
            with tf.control_dependencies([] if is_inside is None else [is_inside]):
                start, end = batch_slice.first - first, last - first
            return [one[start:end] if is_rows else tf.identity(one) for one, is_rows in zip(own, self._are_rows)]

        def make() -> list[Any]:
            return dealer.take(ticket, batch_slice.first, batch_slice.count, total)

        rows = (
            _choose((first <= batch_slice.first) & (last <= first + count), cut, make) if slices.may_change() else cut()
        )
        for one, had in zip(rows, own):
            one.set_shape(had.shape)
        return self._pad_alike(rows, batch_slice), batch_slice

    def _pad_alike(self, rows: list[Any], batch_slice: Slice) -> list[Any]:
        """Rows that are padded to the longest of this rank's, padded to the longest of all ranks'. Collective if so."""
        if not self._pads:
            return rows
        sizes = {at: tf.shape(rows[at], tf.int64) for at in self._pads}
        (longest,) = self._exchanger.exchange(
            [Request("max", tf.concat(list(sizes.values()), 0))], batch_slice.of_all()
        )
        found, start = list(rows), 0
        for at, value in self._pads.items():
            end = start + rows[at].shape.rank
            more = tf.concat([[0], longest[start + 1 : end] - sizes[at][1:]], 0)
            found[at] = tf.pad(rows[at], tf.stack([tf.zeros_like(more), more], 1), constant_values=value)
            start = end
        return found


_OTHERS = "a batch was prepared for another slice than its step takes; please report this"


def _choose(condition: Any, first: Any, second: Any) -> list[Any]:
    made = tf.cond(condition, first, second)
    return list(made) if isinstance(made, (list, tuple)) else [made]


def list_feeds(
    handles: Sequence[Any], watch: BatchWatch, parts: slices.SliceRatios | None, place: str
) -> list[StepFeed | None]:
    """For each eager tensor that a step takes, what it gives; None if it gives no shared batches."""
    found = map(find_dealt, handles)
    return [None if one is None else StepFeed(one.dealer, watch, parts, place) for one in found]
