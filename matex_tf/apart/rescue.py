"""Lets asynchronous ranks continue after the loss of a rank (`turns`, with MATEX_ELASTIC).

A loss has two phases:

1. Within an epoch, where ranks make no collectives. A rank that waits finds the loss and notes it in the store
   (`find_losses`). Another rank then trains the batch that the lost rank had begun, and adds to the weights only what
   the lost rank had not added (`store`). All ranks keep their numbers.
2. In the next collectives, usually when the ranks meet at the end of the epoch. The remaining ranks shrink the world
   and get new numbers; then `_handle_loss` is called. A loss that no waiting rank has found has only this phase.

The metrics of each rank have two slots in the store, versions 0 and 1. The rank writes to them alternately, after each
batch. So one slot always has the metrics up to its last completed batch, even if the rank is lost while it writes the
other slot. In phase 2, rank 0 adds the metrics of lost ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from matex_tf.apart import store, values
from matex_tf.resilience import elastic
from matex_tf.steps import events
from matex_tf.world import membership, shrinking, world


class Rescue:
    """Handles the losses of ranks in one training; `sums` are the variables of its metrics."""

    def __init__(self, sums: values.Sums):
        self._sums = sums
        self._turns: Any = None  # the `Turns` of this training
        self._offset = 0  # of the first slot in the store, in bytes
        self._version = 1  # of the slot that this rank has written last, as in the store after `end_batch`
        # The store, and the next three fields, use the ranks' numbers at the start of the epoch.
        self._ranks: list[int] = []  # the remaining ranks, in the order of their present numbers
        self._lost: set[int] = set()
        self._added: set[int] = set()  # lost ranks whose metrics this rank has added
        self.is_meeting = False  # the ranks exchange their metrics at the end of an epoch; `Turns` sets it

    def watch_losses(self, turns: Any) -> None:
        """Register a handler that lets `turns`, a `Turns`, continue after the loss of a rank."""
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
        own_amounts = self._sums.compute_added()
        for version in (0, 1):  # zeros; version 1 counts until this rank has trained a batch (`store.read_version`)
            self._write_slot(me.rank, version, own_amounts)
        self._ranks = list(range(me.size))
        self._lost, self._added = set(), set()

    def keep_sums(self) -> int:
        """Store this rank's metrics after a batch. Returns their version (`store.end_batch`).

        A rank keeps its number within an epoch, so the present number is the one in the store.
        """
        self._version = 1 - self._version
        self._write_slot(world.get_world().rank, self._version, self._sums.compute_added())
        return self._version

    def find_losses(self) -> None:
        """Note in the store the ranks that MPI knows to be lost, so that others do not wait for them.

        The first rank to note a loss reports it.
        """
        me = world.get_world()
        for rank in shrinking.list_lost():
            if store.is_lost(rank):
                continue
            is_first, batch = store.note_loss(rank)
            if is_first:
                remaining = me.size - sum(map(store.is_lost, range(me.size)))
                batch_text = (
                    "it had no batch" if batch is None else f"another rank trains its batch, {batch} of the epoch"
                )
                place_text = f"within an epoch of asynchronous training; {batch_text}"
                elastic.report_loss({rank: me.hosts[rank]}, remaining, place_text)

    def _handle_loss(self, _became_first: bool) -> None:
        """Continue with the other ranks, which have new numbers. A listener of `events.world_changed`.

        While the ranks meet, rank 0 adds to its metrics those of each lost rank, once. If rank 0 is lost itself, so are
        these sums, because its slot has only its own metrics. The new rank 0 then adds the metrics of all lost ranks.
        At other times there is nothing to add: the ranks have met, or begin an epoch.
        """
        assert self._turns is not None
        self._turns.is_outdated = True  # the next epoch makes a new store
        # `membership.survivors` has the numbers before this loss. They are indices of `self._ranks`, which has the
        # numbers at the start of the epoch; an earlier loss may lie between the two.
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
        slot: np.ndarray = store.map_bytes(start + size)[start:]  # `map_bytes` begins at the start of the store
        return slot

    def _write_slot(self, rank: int, version: int, amounts: list[np.ndarray]) -> None:
        data = np.frombuffer(b"".join(amount.tobytes() for amount in amounts), np.uint8)
        self._map_slot(rank, version)[: data.size] = data  # the slot is longer: `Sums.size` is padded

    def _read_slot(self, rank: int, version: int) -> list[np.ndarray]:
        data, amounts, offset = self._map_slot(rank, version).tobytes(), [], 0
        for own_amount in self._sums.compute_added():
            amount = np.frombuffer(data[offset : offset + own_amount.nbytes], own_amount.dtype)
            amounts.append(amount.reshape(own_amount.shape))
            offset += own_amount.nbytes
        return amounts
