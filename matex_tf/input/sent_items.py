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


class Turn:
    """An item that one rank has made. See `batches.Batch`.

    source: the `turns.Source`. number: of the item. maker: the rank that made it. made: its flat tensors, on that rank.
    shapes: of these tensors. failed: the code and the text of the error, if the item could not be made.
    """

    def __init__(self, source: Any, number: int, maker: int, made: Any, shapes: Any, failed: Any):
        self.source, self.number, self.failed = source, number, failed
        self._holder, self._made, self._shapes, self._ranks = maker, made, shapes, world.get_world().size
        counts = {shape[0] for shape, is_rows in zip(shapes or (), source.are_rows) if is_rows}
        self.total, self.is_even = max(counts, default=0), len(counts) < 2

    def take_slice(self, ratios: Any = None) -> list[Any]:
        rows = membership.attempt_collectives(_ROWS, lambda: self._exchange(functools.partial(self._cut, ratios)))
        return [*rows, *batches.make_numbers(batches.find_bounds(self.total, ratios), self.total)]

    def take_whole(self) -> list[Any]:
        return membership.attempt_collectives(_ROWS, lambda: self._exchange(lambda rank: None))

    def digest(self) -> tuple[int, int]:
        """No digest: all ranks have rows of one item, which need no comparison."""
        return self.total, self.number

    def _cut(self, ratios: Any, rank: int) -> slice:
        me = world.get_world()
        start, stop, _ = slice_bounds.find_slice_bounds(self.total, rank, me.trainers if ratios is None else ratios)
        return slice(int(start), int(stop))

    def _exchange(self, cut: Callable[[int], slice | None]) -> list[Any]:
        """The tensors with the rows that `cut` selects for each rank's number. Collective."""
        self._find_holder()
        with objects.start_exchange(_ROWS, f"sending from {self._holder}"):
            began = time.perf_counter()
            found = self._send(cut) if self._made is not None else self._receive(cut(world.get_world().rank))
            if self.source.is_open:
                self.source.exchanges.append(time.perf_counter() - began)
        return found

    def _find_holder(self) -> None:
        """A remaining rank that has the item after a rank was lost; if there is none, rank 0, which makes it again."""
        me = world.get_world()
        if self._ranks == me.size:
            return
        held = objects.allgather(self._made is not None, f"looking for {NEXT}")
        self._holder, self._ranks = held.index(True) if any(held) else 0, me.size
        if not any(held) and me.rank == 0:
            self._made = self.source.make_item(self.number)

    def _send(self, cut: Callable[[int], slice | None]) -> list[Any]:
        from mpi4py import MPI

        me, comm = world.get_world(), world.get_communicator("control")
        values = [one.numpy() for one in self._made]
        sent = []
        for rank in range(me.size):
            if rank != me.rank:
                for value, is_rows in zip(values, self.source.are_rows):
                    part = _take_rows(value, is_rows, cut(rank))
                    is_text = part.dtype.hasobject
                    sent.append(comm.isend(part, rank) if is_text else comm.Isend(_view_bytes(part), rank))
        MPI.Request.waitall(sent)
        return [_take_rows(one, is_rows, cut(me.rank)) for one, is_rows in zip(self._made, self.source.are_rows)]

    def _receive(self, rows: slice | None) -> list[Any]:
        comm, found = world.get_communicator("control"), []
        for (dtype, _), shape, is_rows in zip(self.source.specs, self._shapes, self.source.are_rows):
            if dtype == tf.string:
                part = comm.recv(source=self._holder)
            else:
                shape = (rows.stop - rows.start, *shape[1:]) if is_rows and rows else shape
                part = np.empty(shape, dtype.as_numpy_dtype)
                comm.Recv(_view_bytes(part), self._holder)
            found.append(tf.constant(part, dtype))
        return found


def _take_rows(value: Any, is_rows: bool, rows: slice | None) -> Any:
    return value[rows] if is_rows and rows else value


def _view_bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
