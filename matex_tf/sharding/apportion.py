"""The number of rows that each rank contributes to a step, if the ranks have shards of different sizes.

Example: rank 0 has 6 rows, rank 1 has 2. With batches of 4 rows each step has 3 rows of rank 0 and 1 row of rank 1, so
both shards last for 2 steps.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache

from matex_tf.sharding import slice_bounds


def apportion_rows(counts: Sequence[int], rows: int) -> list[int]:
    """The number of rows of each rank among the first `rows` rows, if ranks with `counts` rows use them up evenly.

    Row i of a rank with n rows has the position (i + 1/2) / n. Rows are taken in the order of their positions; of rows
    at equal positions, the row of the lower rank comes first (Webster's method of apportionment). So a rank's number
    never falls as `rows` grows; for two ranks it differs from the rank's exact proportion by less than one row.
    """
    return list(_apportion_rows(tuple(int(count) for count in counts), int(rows)))


@lru_cache(maxsize=256)
def _apportion_rows(counts: tuple[int, ...], rows: int) -> tuple[int, ...]:
    total = sum(counts)
    rows = max(0, min(rows, total))
    if total == 0:
        return counts
    # Count the rows at positions up to (rows - ranks / 2) / total. They are at most `rows`, and almost as many. Then
    # take the few remaining rows one by one.
    taken = [max(0, ((2 * rows - len(counts)) * count + total) // (2 * total)) for count in counts]

    def list_next(rank: int) -> Iterator[tuple[Fraction, int]]:
        """The positions of the rank's further rows, with the rank, in order."""
        return ((Fraction(2 * row + 1, 2 * counts[rank]), rank) for row in range(taken[rank], counts[rank]))

    next_rows = heapq.merge(*map(list_next, range(len(counts))))
    for _, rank in itertools.islice(next_rows, rows - sum(taken)):
        taken[rank] += 1
    return tuple(taken)


def apportion_step_rows(
    counts: Sequence[int], step: int, batch_size: int, dealt_batch_size: int | None = None
) -> list[int]:
    """The number of rows of each rank in step `step` (from 0), in total `batch_size`, or in the last step the rest.

    Each rank uses its rows in order, each once. A rank whose proportion is less than one row has 0 rows in some steps.

    counts: the number of rows of each rank's shard.
    dealt_batch_size: equal to `batch_size`, if the shards are the ranks' slices of batches of this size. Then each step
        has the rows of one of these batches. Otherwise None.
    """

    def count_used(rows: int) -> list[int]:
        """The number of rows of each rank among the first `rows` rows of all steps."""
        if dealt_batch_size is None:
            return apportion_rows(counts, rows)
        # Ranks without rows are the last ranks. Batches were dealt to the ranks before them only.
        size = sum(count > 0 for count in counts)
        return count_rows_taken(sum(counts), dealt_batch_size, size, rows) + [0] * (len(counts) - size)

    begins, ends = count_used(step * batch_size), count_used((step + 1) * batch_size)
    return [end - begin for begin, end in zip(begins, ends, strict=True)]


def count_rows_taken(total: int, batch_size: int, size: int, rows: int) -> list[int]:
    """The number of rows of each of `size` ranks among the first `rows` of `total` rows, if each rank has its slice of
    each batch of `batch_size` rows. `rows` is a multiple of `batch_size`, or at least `total`.
    """
    rows = max(0, min(rows, total))
    batches, remainder = divmod(rows, batch_size)
    slices = [
        (slice_bounds.deal_block(batch_size, rank, size), slice_bounds.deal_block(remainder, rank, size))
        for rank in range(size)
    ]
    return [batches * (stop - start) + last_stop - last_start for (start, stop), (last_start, last_stop) in slices]
