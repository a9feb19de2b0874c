"""Fetches batch k of an epoch of `fit` for asynchronous training (`turns`), where each rank trains some batches only.

The numbers of its batches are known only while the epoch runs. So every rank iterates over all batches and skips the
batches of other ranks. Then batch k has the same rows on every rank.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

from matex_tf.steps.batches import Batch


class Pipeline:
    """The batches of an iterator, numbered from 0 in each epoch.

    take_batch: returns the next batch of an iterator, None at its end.
    max_kept: number of newest batches that are kept, so that this rank can train the batch of a lost rank.
    """

    def __init__(self, take_batch: Callable[[Any], Batch | None], max_kept: int):
        self._take_batch = take_batch
        # (number, batch) pairs. Here the numbers count from the first batch of the iterator, not of the epoch.
        self._kept: collections.deque[tuple[int, Sequence[Any]]] = collections.deque(maxlen=max_kept)
        self._iterator: Any = None
        self._taken = 0  # number of batches taken from the iterator
        self._epoch_start = 0  # number of batches that earlier epochs took from the iterator
        self.digest: tuple[int, int] | None = None
        """`digest` of the epoch's first batch, by which ranks compare their iterations."""

    def begin_epoch(self, iterator: Any) -> None:
        """Begin an epoch with the next batch of `iterator`, which may be the iterator of the last epoch."""
        if iterator is not self._iterator:
            self._iterator, self._taken = iterator, 0
        self._kept.clear()
        self._epoch_start, self.digest = self._taken, None

    def fetch_batch(self, number: int) -> Sequence[Any] | None:
        """Batch `number` of the epoch; None if the pipeline ends before it.

        Raises LookupError if the batch was passed and is no longer kept.
        """
        wanted_number = self._epoch_start + number
        while self._taken <= wanted_number:
            batch = self._take_batch(self._iterator)
            if batch is None:
                return None
            if self._taken == self._epoch_start:
                self.digest = batch.digest()
            self._kept.append((self._taken, batch.take_whole()))
            self._taken += 1
        for kept_number, kept_batch in self._kept:
            if kept_number == wanted_number:
                return kept_batch
        raise LookupError(f"batch {number} of the epoch is no longer kept")
