"""Splits the rows of a data set into parts (training, validation, testing), and assigns rows of a part to ranks.

A part has its own numbering, the positions: with 10 rows and split="last", validation_fraction=0.2 makes rows 8 and 9
the validation rows, at the positions 0 and 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from matex_tf import arguments
from matex_tf.sharding import apportion, slice_bounds

DISTRIBUTIONS = ("block", "cyclic", "batch")
SPLITS = ("last", "spread")


class Split:
    """Splits `total` rows into training, validation and testing rows, independently of the number of ranks.

    "last": training rows come first, then validation, then testing rows. "spread": validation and testing rows are
    taken at equal distances from the complete file, for files sorted by class.
    """

    def __init__(self, total: int, validation: float, testing: float, kind: str):
        for name, fraction in (("validation_fraction", validation), ("test_fraction", testing)):
            arguments.check_fraction("DataSet", name, fraction)
        if validation + testing >= 1:
            raise ValueError(
                "DataSet: validation_fraction and test_fraction leave no training rows; "
                f"given {validation} and {testing}"
            )
        self.total, self.kind = total, arguments.check_choice("DataSet", "split", kind, SPLITS)
        self.testing, self.validation = round(total * testing), round(total * validation)

    def count_rows(self, part: str) -> int:
        if part == "training":
            return self.total - self.testing - self.validation
        return self.testing if part == "testing" else self.validation

    def list_rows(self, part: str, positions: np.ndarray) -> np.ndarray:
        """The row numbers in the file, for `positions` in the part."""
        if self.kind == "last":
            starts = {"training": 0, "validation": self.count_rows("training"), "testing": self.total - self.testing}
            return positions + starts[part]
        if part == "testing":
            return _spread_rows(positions, self.testing, self.total)
        # Validation rows are spread over the rows that are not testing rows; training rows are what is left then.
        # `rest_positions` are positions among the rows that are not testing rows.
        rest_count = self.total - self.testing
        list_rest_rows = _spread_rows if part == "validation" else _list_others
        rest_positions = list_rest_rows(positions, self.validation, rest_count)
        return _list_others(rest_positions, self.testing, self.total)

    def is_contiguous(self, part: str) -> bool:
        """Whether the rows of a part are consecutive rows of the file."""
        return self.kind == "last" or self.testing + self.validation == 0


def _spread_rows(positions: np.ndarray, chosen_count: int, total: int) -> np.ndarray:
    """The rows at `positions` among the middles of `chosen_count` equal sections of `total` rows."""
    return ((2 * positions + 1) * total) // (2 * chosen_count)


def _list_others(positions: np.ndarray, chosen_count: int, total: int) -> np.ndarray:
    """The rows at `positions` among the rows that `_spread_rows` does not choose."""
    if not chosen_count:
        return positions
    # Row = position + the number of chosen rows up to this row. The number is recomputed until no row changes. It only
    # grows, up to `chosen_count`, so the loop ends.
    rows = positions
    while True:
        # The number of chosen rows up to row r: of i below `chosen_count` with
        # (2i + 1) * total < 2 * chosen_count * (r + 1).
        chosen_before = np.minimum((2 * chosen_count * (rows + 1) - 1 + total) // (2 * total), chosen_count)
        new_rows = positions + chosen_before
        if np.array_equal(new_rows, rows):
            return rows
        rows = new_rows


class Deal:
    """The assignment of the `count` rows of a part to `size` ranks. The last `servers` of them are parameter servers
    without rows, which the attribute `size` does not count.

    "block": contiguous blocks that differ by at most one row. "cyclic": row i to rank i mod size. "batch": the rank's
    slice of each global batch of `batch_size` rows.
    """

    def __init__(
        self, count: int, size: int, distribution: str = "block", batch_size: int | None = None, servers: int = 0
    ):
        arguments.check_choice("DataSet", "distribution", distribution, DISTRIBUTIONS)
        if distribution == "batch" and batch_size is None:
            raise ValueError('DataSet: distribution="batch" needs a batch_size; given None')
        if distribution == "batch":
            batch_size = arguments.check_whole_number('DataSet: distribution="batch"', "batch_size", batch_size)
        if distribution != "batch" and batch_size is not None:
            raise ValueError(f'DataSet: batch_size= requires distribution="batch"; given distribution={distribution!r}')
        self.count, self.distribution, self.batch_size = count, distribution, batch_size
        self.size = size - servers  # the number of ranks with rows
        self._batch = batch_size or 1  # used with "batch" only
        self._servers = servers

    def count_held(self, rank: int) -> int:
        """The number of rows of a rank."""
        if self.distribution != "batch" or rank >= self.size:
            # "cyclic" gives each rank as many rows as "block". The block of a rank that serves is empty.
            start, stop = slice_bounds.deal_block(self.count, rank, self.size)
            return stop - start
        whole, rest = divmod(self.count, self._batch)
        first, last = slice_bounds.deal_block(self._batch, rank, self.size)
        rest_first, rest_last = slice_bounds.deal_block(rest, rank, self.size)
        return whole * (last - first) + rest_last - rest_first

    def count_all(self) -> list[int]:
        """The number of rows of each rank, also of ranks that serve."""
        return [self.count_held(rank) for rank in range(self.size + self._servers)]

    def list_positions(self, rank: int, start: int, stop: int) -> range | np.ndarray:
        """The positions in the part of the rank's rows `start` to `stop`: a range for "block", else int64."""
        if self.distribution == "block":
            first = slice_bounds.deal_block(self.count, rank, self.size)[0]
            return range(first + start, first + stop)
        own_indices = np.arange(start, stop, dtype=np.int64)
        if self.distribution == "cyclic":
            return rank + own_indices * self.size
        # In each of the `whole_batches` complete batches, this rank has the rows from offset `first` up to `last`,
        # exclusive. The rest of the rows is a shorter batch, where its rows begin at offset `rest_first`. Of 10 rows in
        # batches of 4, rank 1 of 2 has rows 2, 3, 6, 7 and 9.
        first, last = slice_bounds.deal_block(self._batch, rank, self.size)
        whole_batches = self.count // self._batch
        rest_first = slice_bounds.deal_block(self.count % self._batch, rank, self.size)[0]
        # The rank serves, or there are more ranks than rows in a batch: no rows, `own_indices` is empty.
        if last == first:
            return whole_batches * self._batch + rest_first + own_indices
        batch_numbers = own_indices // (last - first)
        return (
            batch_numbers * self._batch
            + np.where(batch_numbers < whole_batches, first, rest_first)
            + own_indices % (last - first)
        )

    def count_taken(self, rows: int) -> list[int]:
        """For each rank, the number of its rows among the first `rows` rows that the ranks consume together."""
        return apportion.apportion_rows(self.count_all(), rows)

    def find_local(self, rank: int) -> Any:
        """All positions of the rank's rows in the part, as an index of an array: a slice, or for "batch" an array."""
        if self.distribution == "block":
            return slice(*slice_bounds.deal_block(self.count, rank, self.size))
        if self.distribution == "cyclic":
            return slice(rank if rank < self.size else self.count, self.count, self.size)
        return self.list_positions(rank, 0, self.count_held(rank))
