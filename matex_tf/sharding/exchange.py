"""Exchanges rows between the ranks' arrays of own rows.

With reshuffle="epoch" of a reader, ranks exchange rows at random before each epoch but the first, so that over many
epochs each rank trains on all rows (`exchange_rows`). `join_rows` gives every rank the rows of all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from matex_tf import errors, ops
from matex_tf.runtime import excepthook, objects
from matex_tf.world import world

_ROUND_BYTES = 16 << 20
"""About the number of bytes that a rank sends in one round."""


def exchange_rows(arrays: Sequence[np.ndarray], seed: int, epoch: int) -> None:
    """Exchange rows of all ranks' `arrays` at random, in place; each rank keeps its number of rows. Collective.

    Every rank puts its rows in a random order and deals them to the ranks that train, one row after the other. This is
    done in rounds, so it needs only `_ROUND_BYTES` of memory in addition to the arrays.

    arrays: arrays that belong together (data, labels): row i of each is sent to the same rank. The shards of the
        ranks that train are equally long, up to one row.
    """
    excepthook.refuse_after_loss("the exchange of each rank's own rows")
    me = world.get_world()
    row_count = len(arrays[0])
    row_bytes = max(1, sum(array[:1].nbytes for array in arrays))
    row_counts, row_sizes = zip(*objects.allgather((row_count, row_bytes), "exchanging rows between the ranks"))
    order = np.random.default_rng([seed, epoch, me.rank]).permutation(row_count)
    communicator = world.get_communicator("readers")
    # A multiple of the number of ranks that train: each of them then gets equally many rows of a complete round.
    round_rows = max(1, _ROUND_BYTES // max(row_sizes) // me.trainers) * me.trainers
    with ops.announce_exchange("exchanging rows between the ranks"):
        for start in range(0, max(row_counts), round_rows):
            chosen_rows = order[start : start + round_rows]
            destinations, received_counts = _plan_round(row_counts, start, round_rows, me.rank, me.trainers)
            for array in arrays:
                _exchange_round(communicator, array, chosen_rows, destinations, received_counts)


def _plan_round(
    counts: Sequence[int], start: int, round_rows: int, rank: int, trainers: int
) -> tuple[np.ndarray, list[int]]:
    """The destination of each row that this rank sends in a round, and the number of rows that it gets from each rank.

    The round has `round_rows` rows of each rank, from row `start`. The rows of all ranks have consecutive numbers, and
    row i goes to rank i mod `trainers`. So every rank receives as many rows as it sends, because the shards are equally
    long, or the first ones have one row more.
    """
    first_numbers = np.concatenate([[0], np.cumsum(counts)])

    def find_destinations(sender: int) -> np.ndarray:
        first, last = min(start, counts[sender]), min(start + round_rows, counts[sender])
        return (first_numbers[sender] + np.arange(first, last)) % trainers

    received_counts = [int((find_destinations(sender) == rank).sum()) for sender in range(len(counts))]
    return find_destinations(rank), received_counts


def _exchange_round(
    communicator: Any, array: np.ndarray, chosen_rows: np.ndarray, destinations: np.ndarray, received_counts: list[int]
) -> None:
    """Replace `chosen_rows` of an array by rows of all ranks. destinations, received_counts: see `_plan_round`."""
    rows_by_destination = chosen_rows[np.argsort(destinations, kind="stable")]
    outgoing = np.ascontiguousarray(np.asarray(array)[rows_by_destination])
    incoming = np.empty((sum(received_counts), *array.shape[1:]), array.dtype)
    row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    sent_bytes = [int(count) * row_bytes for count in np.bincount(destinations, minlength=len(received_counts))]
    received_bytes = [count * row_bytes for count in received_counts]
    communicator.Alltoallv(
        [outgoing.reshape(-1).view(np.uint8), sent_bytes], [incoming.reshape(-1).view(np.uint8), received_bytes]
    )
    array[chosen_rows] = incoming


def make_epoch_action(arrays: Sequence[np.ndarray], seed: int) -> Callable[[], None]:
    """The action before each epoch of a training run: exchanges rows before all but the first."""
    epochs = itertools.count()

    def prepare_epoch() -> None:
        epoch = next(epochs)
        if epoch:
            exchange_rows(arrays, seed, epoch)

    return prepare_epoch


def join_rows(arrays: Sequence[np.ndarray], subject: str) -> list[np.ndarray]:
    """For each array, the rows of all ranks, in the order of ranks. `subject`: names the rows. Collective."""
    arrays_of_ranks = objects.allgather([np.asarray(array) for array in arrays], subject)
    excepthook.refuse_after_loss(subject)  # the rows of a lost rank are missing
    if len({len(rank_arrays) for rank_arrays in arrays_of_ranks}) > 1:
        raise errors.BatchError(f"{subject}: the ranks have different numbers of arrays of their own rows")
    return [np.concatenate(parts) for parts in zip(*arrays_of_ranks)]
