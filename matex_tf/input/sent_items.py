"""The rows of an item that one rank has made, its *maker*.

For a step that divides the item, the maker sends each rank its slice. Otherwise, for instance for eager code, it sends
all rows to all ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from matex_tf.lazy import tf
from matex_tf.runtime import objects
from matex_tf.steps import batches
from matex_tf.world import membership, world

NEXT, _ROWS = "the next item of a PyDataset", "the rows of an item of a PyDataset"


class SentItem(batches.Batch):
    """An item that one rank has made; the others receive their rows when they need them.

    source: the `turns.Source` of the item, which gets the times of exchanges for its choice.
    number: the number of the item.
    maker: the rank that has made the item.
    tensors: the flat tensors of the item on that rank; None on the others.
    shapes: the shapes of these tensors, on all ranks.
    failure: the code and the text of the error, if the item could not be made.
    total: the number of rows. is_even: all tensors with rows have equally many.

    _ranks: the number of ranks at which `_maker` was set. If ranks were lost since, ranks have other numbers.
    """

    def __init__(self, source: Any, number: int, maker: int, tensors: Any, shapes: Any, failure: Any):
        self.source, self.number, self.failure = source, number, failure
        self._maker, self._tensors, self._ranks = maker, tensors, world.get_world().size
        row_counts = {shape[0] for shape, is_rows in zip(shapes or (), source.are_rows) if is_rows}
        self.total, self.is_even = max(row_counts, default=0), len(row_counts) < 2

    def make_rows(self, ratios: Any) -> list[Any]:
        def select(arrays: list[Any], rank: int) -> list[Any]:
            rows = batches.find_slice(self.total, ratios, rank)
            return batches.slice_rows(arrays, self.source.are_rows, rows.first, rows.count)

        def scatter(arrays: list[Any] | None) -> list[Any]:
            arrays_of_ranks = (
                None if arrays is None else [select(arrays, rank) for rank in range(world.get_world().size)]
            )
            return list(world.get_communicator("control").scatter(arrays_of_ranks, root=self._maker))

        return membership.attempt_collectives(_ROWS, lambda: self._exchange(scatter))

    def take_whole(self) -> list[Any]:
        def broadcast(arrays: list[Any] | None) -> list[Any]:
            return list(world.get_communicator("control").bcast(arrays, root=self._maker))

        return membership.attempt_collectives(_ROWS, lambda: self._exchange(broadcast))

    def digest(self) -> tuple[int, int]:
        """Numbers of the item, not a hash of its rows: all ranks have rows of one item, which need no comparison."""
        return self.total, self.number

    def _exchange(self, send: Callable[[list[Any] | None], list[Any]]) -> list[Any]:
        """The flat tensors with the rows that this rank receives. Collective.

        send: sends the arrays of the item, which only the maker has, and returns the arrays that this rank receives.
        """
        self._replace_lost_maker()
        with objects.start_exchange(_ROWS, f"sending from {self._maker}"):
            began = time.perf_counter()
            arrays = send(None if self._tensors is None else [tensor.numpy() for tensor in self._tensors])
            seconds = self.source.choice.seconds
            seconds[True] = min(seconds[True], time.perf_counter() - began)
        return [tf.constant(array, dtype) for array, (dtype, _) in zip(arrays, self.source.specs)]

    def _replace_lost_maker(self) -> None:
        """After a rank was lost, find a remaining rank that has the item; if none has it, rank 0 makes it again."""
        me = world.get_world()
        if self._ranks == me.size:
            return
        have_item = objects.allgather(self._tensors is not None, f"looking for {NEXT}")
        self._maker, self._ranks = have_item.index(True) if any(have_item) else 0, me.size
        if not any(have_item) and me.rank == 0:
            self._tensors = self.source.take_from(self.source.make_ahead([self.number]))
