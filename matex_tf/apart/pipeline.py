"""The batches of the iterators that `fit` takes from, by their place: every rank goes through all of them."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

from matex_tf.sharding import fingerprint


class Pipeline:
    """
    Args:
        take: gives the next batch of an iterator, None at its end.
        most: how many batches stay, so that they can be trained for a lost rank.
    """

    def __init__(self, take: Callable[[Any], list[Any] | None], most: int):
        self._take = take
        self._kept: collections.deque[tuple[int, Sequence[Any]]] = collections.deque(maxlen=most)
        self._iterator: Any = None
        self._next = 0  # the place of the next batch
        self._first = 0  # of the first batch of the epoch
        self.digest: tuple[int, int] | None = None  # the rows and the hash of the epoch's first batch

    def begin_epoch(self, iterator: Any) -> None:
        """The next batch of `iterator`, which may be that of the last epoch, is batch 0 of the epoch."""
        if iterator is not self._iterator:
            self._iterator, self._next = iterator, 0
        self._kept.clear()
        self._first, self.digest = self._next, None

    def fetch_batch(self, number: int) -> Sequence[Any] | None:
        """Batch `number` of the epoch; None if the pipeline ends before.

        Raises:
            LookupError: it was gone past, and does not stay.
        """
        place = self._first + number
        while self._next <= place:
            batch = self._take(self._iterator)
            if batch is None:
                return None
            if self._next == self._first:
                self.digest = len(batch[0]), _digest(batch)
            self._kept.append((self._next, batch))
            self._next += 1
        return next(batch for at, batch in self._kept if at == place)


def _digest(batch: Sequence[Any]) -> int:
    total = 0
    for one in batch:
        total = fingerprint.digest_value(one, total)
    return total
