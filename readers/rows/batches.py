"""Iterates over the global batches of a part, such as the training rows: selects this rank's rows of the next batch.

With 6 rows, of which rank 0 has rows 0-2 and rank 1 rows 3-5, the first batch of 4 rows consists of the first two rows
of each rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf import arguments
from matex_tf.readers.rows.layout import Deal
from matex_tf.sharding import exchange


class BatchCursor:
    """The position of the ranks in a part, from batch to batch. Each rank uses its rows in the order of its array."""

    def __init__(self, deal: Deal, rank: int):
        self._deal, self._rank = deal, rank
        self._used_rows = 0  # by all ranks together, in this epoch
        self._begun_epochs = 0

    def exchange_rows(self, arrays: Sequence[np.ndarray], seed: int) -> None:
        """At the beginning of an epoch except the first, exchange the rows of `arrays` with other ranks. Collective."""
        if self._used_rows:
            return
        if self._begun_epochs:
            row_count = self._deal.count_held(self._rank)  # a rank without rows has an array of one row
            exchange.exchange_rows([array[:row_count] for array in arrays], seed, self._begun_epochs)
        self._begun_epochs += 1

    def take_next(self, rows: int) -> slice:
        """This rank's rows of the next batch, which has `rows` rows of all ranks, or fewer at the end of an epoch."""
        first, last = self._used_rows, min(self._used_rows + rows, self._deal.count)
        # Of the first `count` rows that all ranks use, this rank has used count_taken(count)[rank].
        start, stop = (self._deal.count_taken(count)[self._rank] for count in (first, last))
        self._used_rows = last % self._deal.count
        return slice(start, stop)


def check_rows(name: str, deal: Deal, rows: Any) -> int:
    """Return `rows`, the batch size requested by `name`. Raises ValueError or TypeError if it is invalid."""
    rows = arguments.check_whole_number(name, "the rows of a batch", rows)
    if deal.batch_size not in (None, rows):
        raise ValueError(
            f'{name}: the rows were dealt for batches of {deal.batch_size} (distribution="batch"); given {rows}'
        )
    return rows
