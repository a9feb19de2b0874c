"""Collectives of Python objects, for communication outside a step's tensors.

Like a collective of tensors, each has a number in the sequence of collectives. Before they exchange data, ranks compare
the description of the `purpose`, which must be the same on all ranks (`ops.rendezvous`). With MATEX_ELASTIC, the
remaining ranks repeat a collective in which one was lost.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from matex_tf import ops
from matex_tf.lazy import MPI
from matex_tf.ops import records
from matex_tf.world import membership, world

_MAX_COMPARED_BYTES = 1 << 16
"""The largest value that ranks compare by a digest. For larger values, a digest takes more time than it saves."""

# Locked from the rendezvous to the end of the exchange. Otherwise two threads could exchange in another order.
_exchange_lock = threading.RLock()


def allgather(value: Any, purpose: str, rows: int = 0) -> list[Any]:
    """The values of all ranks, by rank, on every rank. They are copies, except `value` itself without other ranks.

    `rows`: the number of rows of the batch that the values concern, for the error of ranks at different places; or 0.
    """
    if not world.is_active():
        return [value]
    packed = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)

    def gather() -> list[Any]:
        with start_exchange(purpose, "allgather", len(packed), rows):
            if _are_same(packed):
                return [copy.deepcopy(value) for _ in range(world.get_world().size)]
            return list(world.get_communicator("control").allgather(value))

    return membership.attempt_collectives(purpose, gather)


def _are_same(packed: bytes) -> bool:
    """Whether all ranks have the same bytes; large values are not compared. Collective.

    Most values are equal on all ranks. A comparison of digests then replaces the gathering of values: it takes O(log N)
    messages of 16 bytes, and the gathered values would take O(N) memory.
    """
    if world.get_world().is_phantom:
        return True
    digest = hashlib.blake2b(packed, digest_size=8).digest()
    number = int.from_bytes(digest, "little") >> 1  # fits a signed integer of 64 bits, as its negative does
    # The maxima are max(number) and -min(number): opposite only if all ranks have the same number. A rank with a large
    # value sends 1 and 1, so that both maxima are positive.
    maxima = np.array([number, -number] if len(packed) <= _MAX_COMPARED_BYTES else [1, 1])
    world.get_communicator("control").Allreduce(MPI.IN_PLACE, maxima, MPI.MAX)
    return bool(maxima[0] == -maxima[1])


def broadcast(value: Any, purpose: str, root: int = 0) -> Any:
    """The value of rank `root`, on every rank."""
    if not world.is_active():
        return value

    def send() -> Any:
        with start_exchange(purpose, f"broadcast from {root}", _measure_size(value)):
            return world.get_communicator("control").bcast(value, root=root)

    def check_root() -> None:  # after a loss, before `send` is repeated
        if membership.survivors[root : root + 1] != [root]:  # the rank is lost, or now has another number
            raise membership.make_loss_error(f"rank {root} alone had {purpose}")

    return membership.attempt_collectives(purpose, send, check_root)


def barrier(purpose: str) -> None:
    """Returns on each rank after all ranks have called it."""
    if world.is_active():
        membership.attempt_collectives(purpose, lambda: _meet_ranks("barrier", purpose))


@contextlib.contextmanager
def start_exchange(purpose: str, operation: str = "exchange", size: int = 0, rows: int = 0) -> Iterator[None]:
    """A context for common communication over MPI; it begins after all ranks have reached it.

    Args:
        size: the bytes that this rank contributes.
        rows: see `allgather`.
    """
    with _exchange_lock:
        _meet_ranks(operation, purpose, size, rows)
        with ops.announce_exchange(purpose):
            yield


def _measure_size(value: Any) -> int:
    """The size of `value` as a message in bytes; 0 if sizes are not recorded."""
    return len(pickle.dumps(value)) if records.is_on() else 0


def _meet_ranks(operation: str, purpose: str, size: int = 0, rows: int = 0) -> None:
    """Wait until all ranks have called this function. Raises an error if ranks differ in `operation` or `purpose`."""
    key = hashlib.blake2b(f"{operation} {purpose}".encode(), digest_size=8).digest()
    ops.rendezvous(ops.Kind.CONTROL, int.from_bytes(key, "little"), purpose, size, rows)
