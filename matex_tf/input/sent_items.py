"""The rows of an item of a `PyDataset`, sent by the rank that has made it to the ranks that train them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from matex_tf.lazy import tf
from matex_tf.runtime import objects
from matex_tf.sharding import slice_bounds
from matex_tf.steps import batches
from matex_tf.world import membership, world

NEXT, _ROWS = "the next item of a PyDataset", "the rows of an item of a PyDataset"


class SentItem:
    """An item that one rank has made; the others receive their rows when they need them. See `batches.Batch`.

    source: the `turns.Source`.
    number: the number of the item.
    maker: the rank that has made the item.
    tensors: the flat tensors of the item on that rank; None on the others.
    shapes: the shapes of these tensors.
    failure: the code and the text of the error, if the item could not be made.

    _ranks: the number of ranks for which `_maker` holds.
    """

    def __init__(self, source: Any, number: int, maker: int, tensors: Any, shapes: Any, failure: Any):
        self.source, self.number, self.failure = source, number, failure
        self._maker, self._tensors, self._shapes, self._ranks = maker, tensors, shapes, world.get_world().size
        counts = {shape[0] for shape, is_rows in zip(shapes or (), source.are_rows) if is_rows}
        self.total, self.is_even = max(counts, default=0), len(counts) < 2

    def take_slice(self, ratios: Any = None) -> list[Any]:
        find_rows = functools.partial(self._find_rows, ratios)
        rows = membership.attempt_collectives(_ROWS, lambda: self._exchange(find_rows))
        return [*rows, *batches.make_numbers(batches.find_bounds(self.total, ratios), self.total)]

    def take_whole(self) -> list[Any]:
        return membership.attempt_collectives(_ROWS, lambda: self._exchange(lambda rank: None))

    def digest(self) -> tuple[int, int]:
        """The item's number, not a hash: all ranks have rows of one item, which need no comparison."""
        return self.total, self.number

    def _find_rows(self, ratios: Any, rank: int) -> slice:
        """The rows of the item that a rank trains. ratios: see `batches.find_bounds`."""
        me = world.get_world()
        start, stop, _ = slice_bounds.find_slice_bounds(self.total, rank, me.trainers if ratios is None else ratios)
        return slice(int(start), int(stop))

    def _exchange(self, find_rows: Callable[[int], slice | None]) -> list[Any]:
        """The tensors with this rank's rows. Collective.

        find_rows: the rows of the rank with a number; None: all.
        """
        self._replace_lost_maker()
        with objects.start_exchange(_ROWS, f"sending from {self._maker}"):
            began = time.perf_counter()
            has_item = self._tensors is not None
            tensors = self._send(find_rows) if has_item else self._receive(find_rows(world.get_world().rank))
            if self.source.is_open:
                self.source.exchange_seconds.append(time.perf_counter() - began)
        return tensors

    def _replace_lost_maker(self) -> None:
        """After a rank was lost, find the remaining rank that has the item; if none has it, rank 0 makes it again."""
        me = world.get_world()
        if self._ranks == me.size:
            return
        have_item = objects.allgather(self._tensors is not None, f"looking for {NEXT}")
        self._maker, self._ranks = have_item.index(True) if any(have_item) else 0, me.size
        if not any(have_item) and me.rank == 0:
            self._tensors = self.source.make_item(self.number)

    def _send(self, find_rows: Callable[[int], slice | None]) -> list[Any]:
        """Send the rows of the other ranks; returns the tensors with the rows of this rank."""
        from mpi4py import MPI

        me, comm = world.get_world(), world.get_communicator("control")
        arrays = [tensor.numpy() for tensor in self._tensors]
        messages = []
        for rank in range(me.size):
            if rank != me.rank:
                for array, is_rows in zip(arrays, self.source.are_rows):
                    sent = _select_rows(array, is_rows, find_rows(rank))
                    is_text = sent.dtype.hasobject
                    messages.append(comm.isend(sent, rank) if is_text else comm.Isend(_view_bytes(sent), rank))
        MPI.Request.waitall(messages)
        own_rows = find_rows(me.rank)
        return [_select_rows(each, is_rows, own_rows) for each, is_rows in zip(self._tensors, self.source.are_rows)]

    def _receive(self, rows: slice | None) -> list[Any]:
        """The tensors with these rows of this rank, or with all rows."""
        comm, tensors = world.get_communicator("control"), []
        for (dtype, _), shape, is_rows in zip(self.source.specs, self._shapes, self.source.are_rows):
            if dtype == tf.string:
                received = comm.recv(source=self._maker)
            else:
                if is_rows and rows is not None:
                    shape = (rows.stop - rows.start, *shape[1:])
                received = np.empty(shape, dtype.as_numpy_dtype)
                comm.Recv(_view_bytes(received), self._maker)
            tensors.append(tf.constant(received, dtype))
        return tensors


def _select_rows(value: Any, is_rows: bool, rows: slice | None) -> Any:
    return value[rows] if is_rows and rows is not None else value


def _view_bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
