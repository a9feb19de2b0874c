"""Lets asynchronous ranks continue after the loss of a rank (`turns`, with MATEX_ELASTIC).

Another rank trains the batch that the lost rank had begun: the store knows its progress, and has its metrics.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from matex_tf.resilience import elastic
from matex_tf.servers import store
from matex_tf.servers.turns import values
from matex_tf.world import membership, world


class Rescue:
    """Handles losses in one training; `sums` are the variables of its metrics."""

    def __init__(self, sums: values.Sums):
        self._sums = sums
        self._turns: Any = None
        self._place = 0
        self._version = 1
        self._ranks: list[int] = []  # the remaining ranks, by their numbers in the store
        self._lost: set[int] = set()
        self._added: set[int] = set()  # lost ranks whose metrics this rank has added
        self.is_meeting = False  # at the end of an epoch, while metrics are added up

    def watch_losses(self, turns: Any) -> None:
        """Register a handler that lets `turns` continue after the loss of a rank."""
        self._turns, self._ranks = turns, list(range(world.get_world().size))
        elastic.after_loss.append(self._handle_loss)

    def close_turns(self) -> None:
        if self._turns is not None:
            elastic.after_loss.remove(self._handle_loss)
            self._turns = None

    def count_bytes(self) -> int:
        """Bytes that this object needs in the store."""
        return 2 * world.get_world().size * self._sums.size

    def begin_turns(self, place: int) -> None:
        """Begin a training; this object's bytes in the store begin at `place`."""
        self._place, self._version = place, 1
        me = world.get_world()
        parts = self._sums.read()
        for version in (0, 1):
            self._write_counts(me.rank, version, parts)
        self._ranks = list(range(me.size))
        self._lost, self._added = set(), set()

    def keep_counts(self) -> int:
        """Store this rank's metrics after a batch. Returns their version (`store.end_batch`)."""
        self._version = 1 - self._version
        self._write_counts(world.get_world().rank, self._version, self._sums.read())
        return self._version

    def find_losses(self) -> None:
        """Check whether ranks are lost for which others wait."""
        me = world.get_world()
        for rank in world.list_lost():
            if not store.is_lost(rank):
                is_first, batch = store.note_loss(rank)
                if is_first:
                    left = me.size - sum(map(store.is_lost, range(me.size)))
                    had = "it had no batch" if batch is None else f"another rank trains its batch, {batch} of the epoch"
                    elastic.report_loss(
                        {rank: me.hosts[rank]}, left, f"within an epoch of asynchronous training; {had}"
                    )

    def _handle_loss(self, became_first: bool) -> None:
        assert self._turns is not None
        self._turns.is_outdated = True
        self._lost.update(rank for place, rank in enumerate(self._ranks) if place not in membership.survivors)
        elastic.reported.update(place for place, rank in enumerate(self._ranks) if store.is_lost(rank))
        self._ranks = [self._ranks[place] for place in membership.survivors]
        if not self.is_meeting or world.get_world().rank > 0:
            return
        for rank in self._lost - self._added:
            self._added.add(rank)
            self._sums.add(self._read_slot(rank, store.read_version(rank)))

    def _find_slot(self, rank: int, version: int) -> np.ndarray:
        size = self._sums.size
        first = self._place + (2 * rank + version) * size
        found: np.ndarray = store.map_bytes(first + size)[first:]
        return found

    def _write_counts(self, rank: int, version: int, parts: list[np.ndarray]) -> None:
        data = np.frombuffer(b"".join(value.tobytes() for value in parts), np.uint8)
        self._find_slot(rank, version)[: data.size] = data

    def _read_slot(self, rank: int, version: int) -> list[np.ndarray]:
        data, found, first = self._find_slot(rank, version).tobytes(), [], 0
        for like in self._sums.read():
            found.append(np.frombuffer(data[first : first + like.nbytes], like.dtype).reshape(like.shape))
            first += like.nbytes
        return found
