"""The batches of the iterators of `fit` by number, for ranks that take turns at batches (`turns`).

Every rank iterates over all batches, so that all ranks number them alike.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

from matex_tf.sharding import fingerprint


class Pipeline:
    """The batches of an iterator, numbered from 0 in each epoch.

    Args:
        take_batch: returns the next batch of an iterator, None at its end.
        max_kept: number of newest batches that are kept, so that this rank can train the batch of a lost rank.
    """

    def __init__(self, take_batch: Callable[[Any], list[Any] | None], max_kept: int):
        self._take_batch = take_batch
        self._kept: collections.deque[tuple[int, Sequence[Any]]] = collections.deque(maxlen=max_kept)
        self._iterator: Any = None
        self._next = 0  # the next batch of the iterator, counted from the iterator's first
        self._first = 0  # the first batch of the epoch, counted likewise
        self.digest: tuple[int, int] | None = None  # number of rows and hash of the epoch's first batch

    def begin_epoch(self, iterator: Any) -> None:
        """Begin an epoch with the next batch of `iterator`, which may be the iterator of the last epoch."""
        if iterator is not self._iterator:
            self._iterator, self._next = iterator, 0
        self._kept.clear()
        self._first, self.digest = self._next, None

    def fetch_batch(self, number: int) -> Sequence[Any] | None:
        """Batch `number` of the epoch; None if the pipeline ends before it.

        Raises:
            LookupError: the batch was passed and is no longer kept.
        """
        wanted = self._first + number
        while self._next <= wanted:
            batch = self._take_batch(self._iterator)
            if batch is None:
                return None
            if self._next == self._first:
                self.digest = len(batch[0]), _digest(batch)
            self._kept.append((self._next, batch))
            self._next += 1
        return next(batch for position, batch in self._kept if position == wanted)


def _digest(batch: Sequence[Any]) -> int:
    total = 0
    for one in batch:
        total = fingerprint.digest_value(one, total)
    return total
