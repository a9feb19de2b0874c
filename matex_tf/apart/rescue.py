"""Lets asynchronous ranks continue after the loss of a rank (`turns`, with MATEX_ELASTIC).

Another rank trains the batch that the lost rank had begun; the store knows which additions were made. For the metrics,
each rank has two slots in the store, which it writes alternately after a batch. So one slot always has the metrics of
its last completed batch, even if the rank is lost while it writes the other slot.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from matex_tf.apart import store, values
from matex_tf.resilience import elastic
from matex_tf.steps import events
from matex_tf.world import membership, world


class Rescue:
    """Handles the losses of ranks in one training; `sums` are the variables of its metrics."""

    def __init__(self, sums: values.Sums):
        self._sums = sums
        self._turns: Any = None
        self._offset = 0  # of the first slot in the store, in bytes
        self._version = 1  # the slot that this rank has written last, 0 or 1; the store has the same after `end_batch`
        # After a loss ranks get new numbers. The store, and these fields, use the numbers at the start of the epoch.
        self._ranks: list[int] = []  # the remaining ranks, in the order of their present numbers
        self._lost: set[int] = set()
        self._added: set[int] = set()  # lost ranks whose metrics this rank has added
        self.is_meeting = False  # at the end of an epoch, while metrics are added up

    def watch_losses(self, turns: Any) -> None:
        """Register a handler that lets `turns` continue after the loss of a rank."""
        self._turns, self._ranks = turns, list(range(world.get_world().size))
        events.world_changed.add_listener(self._handle_loss)

    def close_turns(self) -> None:
        if self._turns is not None:
            events.world_changed.remove_listener(self._handle_loss)
            self._turns = None

    def count_bytes(self) -> int:
        """Bytes that this object needs in the store."""
        return 2 * world.get_world().size * self._sums.size

    def begin_turns(self, offset: int) -> None:
        """Begin an epoch; this object's bytes in the store begin at `offset`."""
        self._offset, self._version = offset, 1
        me = world.get_world()
        added = self._sums.compute_added()
        for version in (0, 1):
            self._write_slot(me.rank, version, added)
        self._ranks = list(range(me.size))
        self._lost, self._added = set(), set()

    def keep_sums(self) -> int:
        """Store this rank's metrics after a batch. Returns their version (`store.end_batch`)."""
        self._version = 1 - self._version
        self._write_slot(world.get_world().rank, self._version, self._sums.compute_added())
        return self._version

    def find_losses(self) -> None:
        """Mark newly lost ranks in the store, so that others do not wait for them; the first to mark one reports it."""
        me = world.get_world()
        for rank in world.list_lost():
            if store.is_lost(rank):
                continue
            is_first, batch = store.note_loss(rank)
            if is_first:
                remaining = me.size - sum(map(store.is_lost, range(me.size)))
                text = "it had no batch" if batch is None else f"another rank trains its batch, {batch} of the epoch"
                where = f"within an epoch of asynchronous training; {text}"
                elastic.report_loss({rank: me.hosts[rank]}, remaining, where)

    def _handle_loss(self, _became_first: bool) -> None:
        """Continue with the other ranks. At a meeting, rank 0 adds the metrics of lost ranks that it has not added.

        The slot of a lost rank 0 has its own metrics only, so a new rank 0 adds the metrics of all lost ranks.
        """
        assert self._turns is not None
        self._turns.is_outdated = True  # the next epoch makes a new store
        # Ranks were renumbered: `membership.survivors` has the former numbers, which are indices of `self._ranks`.
        self._lost.update(rank for index, rank in enumerate(self._ranks) if index not in membership.survivors)
        # `find_losses` of some rank has reported the losses that the store knows. `elastic` reports the other ones.
        elastic.reported.update(index for index, rank in enumerate(self._ranks) if store.is_lost(rank))
        self._ranks = [self._ranks[index] for index in membership.survivors]
        if not self.is_meeting or world.get_world().rank > 0:
            return
        for rank in self._lost - self._added:
            self._added.add(rank)
            self._sums.add(self._read_slot(rank, store.read_version(rank)))

    def _map_slot(self, rank: int, version: int) -> np.ndarray:
        """The bytes of a slot of a rank. version: 0 or 1."""
        size = self._sums.size
        start = self._offset + (2 * rank + version) * size
        slot: np.ndarray = store.map_bytes(start + size)[start:]
        return slot

    def _write_slot(self, rank: int, version: int, amounts: list[np.ndarray]) -> None:
        data = np.frombuffer(b"".join(amount.tobytes() for amount in amounts), np.uint8)
        self._map_slot(rank, version)[: data.size] = data

    def _read_slot(self, rank: int, version: int) -> list[np.ndarray]:
        data, amounts, offset = self._map_slot(rank, version).tobytes(), [], 0
        for like in self._sums.compute_added():
            amounts.append(np.frombuffer(data[offset : offset + like.nbytes], like.dtype).reshape(like.shape))
            offset += like.nbytes
        return amounts
