"""reshuffle="epoch": ranks exchange the rows they hold, so that every rank comes to see all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf import errors, ops
from matex_tf.runtime import excepthook, objects
from matex_tf.world import world

_ROUND_BYTES = 16 << 20


def exchange_rows(arrays: Sequence[np.ndarray], seed: int, epoch: int) -> None:
    """Deal the rows of all ranks' `arrays` anew, in place; each rank keeps as many rows as it has. Collective.

    They are equal shares of the ranks that train.

    `arrays` belong together (data, labels): row i of one goes where row i of the others goes. Beside them at most
    some 16 MiB are held. Every rank puts its rows in a random order and deals them out to those ranks in turn.
    """
    excepthook.refuse_after_loss("the exchange of each rank's own rows")
    me = world.get_world()
    rows = len(arrays[0])
    mine = (rows, seed, epoch, [(array.dtype.str, array.shape[1:], len(array)) for array in arrays])
    counts = [count for count, *_ in objects.allgather(mine, "exchanging rows between the ranks")]
    order = np.random.default_rng([seed, epoch, me.rank]).permutation(rows)
    communicator = world.get_communicator("readers")
    row_bytes = max(1, sum(array[:1].nbytes for array in arrays) if rows else 1)
    sizes = objects.allgather(row_bytes, "exchanging rows between the ranks")
    step = max(1, _ROUND_BYTES // max(sizes) // me.trainers) * me.trainers
    with ops.announce_exchange("exchanging rows between the ranks"):
        for start in range(0, max(counts), step):
            chosen = order[start : start + step]
            send, receive = _plan_round(counts, start, step, me.rank, me.trainers)
            for array in arrays:
                _exchange_round(communicator, array, chosen, send, receive)


def _plan_round(counts: Sequence[int], start: int, step: int, rank: int, trainers: int) -> tuple[np.ndarray, list[int]]:
    """To whom each row of this rank goes in the round of rows `start` to `start + step`, and how many come from each.

    Rows are numbered through over all ranks and dealt to the first `trainers` in turn, which leaves every rank as many
    as it had.
    """
    before = np.concatenate([[0], np.cumsum(counts)])

    def destinations(of: int) -> np.ndarray:
        first, last = min(start, counts[of]), min(start + step, counts[of])
        return (before[of] + np.arange(first, last)) % trainers

    return destinations(rank), [int((destinations(other) == rank).sum()) for other in range(len(counts))]


def _exchange_round(comm: Any, array: np.ndarray, chosen: np.ndarray, send: np.ndarray, receive: list[int]) -> None:
    # All rows of one destination lie together.
    outgoing = np.ascontiguousarray(np.asarray(array)[chosen[np.argsort(send, kind="stable")]])
    incoming = np.empty((sum(receive), *array.shape[1:]), array.dtype)
    row = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    sent = [int(count) * row for count in np.bincount(send, minlength=len(receive))]
    comm.Alltoallv(
        [outgoing.reshape(-1).view(np.uint8), sent], [incoming.reshape(-1).view(np.uint8), [n * row for n in receive]]
    )
    array[chosen] = incoming


class BeforeEpoch:
    """Called before each epoch of a training run: exchanges rows before all but the first."""

    def __init__(self, arrays: Sequence[np.ndarray], seed: int):
        self._arrays, self._seed, self._epoch = arrays, seed, 0

    def __call__(self) -> None:
        if self._epoch:
            exchange_rows(self._arrays, self._seed, self._epoch)
        self._epoch += 1


def join_rows(arrays: Sequence[np.ndarray], what: str) -> list[np.ndarray]:
    """Of each of a rank's arrays the rows of all ranks, those of rank 0 first; in `what` they are named. Collective."""
    everyone = objects.allgather([np.asarray(array) for array in arrays], what)
    excepthook.refuse_after_loss(what)  # those of a lost rank are gone
    if len({len(theirs) for theirs in everyone}) > 1:
        raise errors.BatchError(f"{what}: the ranks have different numbers of arrays of their own rows")
    return [np.concatenate(parts) for parts in zip(*everyone)]
