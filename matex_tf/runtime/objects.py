"""Collectives of Python objects: what the ranks tell each other beside the tensors of a step.

Each takes a number in the one sequence of collectives, and is known by its `what`: in a few words what it is for, the
same on all ranks. With MATEX_ELASTIC, one in which a rank is lost is made again by those that are left.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from matex_tf import ops
from matex_tf.ops import records
from matex_tf.world import membership, world

_KIND = 6  # see `ops.rendezvous`
_LARGE = 1 << 16
"""Bytes. A digest of more would take longer than it saves."""

# From the meeting to the end of the exchange: else two threads might exchange in another order than they met.
_one_at_a_time = threading.RLock()


def allgather(value: Any, what: str, rows: int = 0) -> list[Any]:
    """The values of all ranks, by rank, on every rank: copies, and equal ones may be one object.

    rows: of the batch that they are about, 0 if it is none.
    """
    if not world.is_active():
        return [value]

    packed = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)

    def gather() -> list[Any]:
        with start_exchange(what, "allgather", len(packed), rows):
            if _are_same(packed):
                return [pickle.loads(packed)] * world.get_world().size
            return [pickle.loads(one) for one in world.get_communicator("control").allgather(packed)]

    return membership.attempt_collectives(what, gather)


def _are_same(packed: bytes) -> bool:
    """Whether all ranks have the same bytes; large ones are not compared. Collective.

    Most values are equal on all ranks. A digest then takes O(log N) messages of 16 bytes, and all values O(N) memory.
    """
    if world.get_world().is_phantom:
        return True
    from mpi4py import MPI

    digest = hashlib.blake2b(packed, digest_size=8).digest()
    number = int.from_bytes(digest, "little") >> 1
    # The largest of both are those of one rank only if all ranks have the same number.
    found = np.array([number, -number] if len(packed) <= _LARGE else [1, 1])
    world.get_communicator("control").Allreduce(MPI.IN_PLACE, found, MPI.MAX)
    return bool(found[0] == -found[1])


def broadcast(value: Any, what: str, root: int = 0) -> Any:
    """The value of rank `root`, on every rank."""
    if not world.is_active():
        return value

    def send() -> Any:
        with start_exchange(what, f"broadcast from {root}", _measure_size(value)):
            return world.get_communicator("control").bcast(value, root=root)

    def undo() -> None:
        if membership.survivors[root : root + 1] != [root]:
            raise membership.make_loss_error(f"rank {root} alone had {what}")

    return membership.attempt_collectives(what, send, undo)


def barrier(what: str) -> None:
    """Returns on each rank once all have called it."""
    if world.is_active():
        membership.attempt_collectives(what, lambda: _meet_ranks("barrier", what))


@contextlib.contextmanager
def start_exchange(what: str, operation: str = "exchange", size: int = 0, rows: int = 0) -> Iterator[None]:
    """Around what all ranks do together over MPI, once all have come to it.

    Args:
        size: the bytes that this rank gives.
        rows: see `allgather`.
    """
    with _one_at_a_time:
        _meet_ranks(operation, what, size, rows)
        with ops.announce_exchange(what):
            yield


def _measure_size(value: Any) -> int:
    """The bytes of `value` as a message; 0 where nothing records them."""
    return len(pickle.dumps(value)) if records.is_on() else 0


def _meet_ranks(operation: str, what: str, size: int = 0, rows: int = 0) -> None:
    # Ranks that talk of different things must not exchange them.
    key = hashlib.blake2b(f"{operation} {what}".encode(), digest_size=8).digest()
    ops.rendezvous(_KIND, int.from_bytes(key, "little"), what, size, rows)
