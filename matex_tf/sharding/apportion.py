"""The number of rows that ranks contribute to steps, if they have shards of different sizes.

Example: rank 0 has 6 rows, rank 1 has 2. With batches of 4 rows each step has 3 rows of rank 0 and 1 row of rank 1, so
both shards last for 2 steps.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache


def apportion_rows(counts: Sequence[int], rows: int) -> list[int]:
    """The number of rows of each rank among the first `rows` rows, if ranks with `counts` rows use them up evenly.

    Row i of a rank with n rows has the position (i + 1/2) / n. Rows are taken in the order of their positions; of rows
    at equal positions, the row of the lower rank comes first (Webster's method of apportionment). So a rank's number
    never falls as `rows` grows; for two ranks it differs from the rank's exact proportion by less than one row.

    If the shards are the ranks' slices of batches of one size (`deal_block`), the first rows of the ranks are those of
    the first batches, for each number of batches: a rank with longer slices has no shorter part of the last batch.
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
    taken_counts = [max(0, ((2 * rows - len(counts)) * count + total) // (2 * total)) for count in counts]

    def list_next(rank: int) -> Iterator[tuple[Fraction, int]]:
        """The positions of the rank's further rows, with the rank, in order."""
        return ((Fraction(2 * row + 1, 2 * counts[rank]), rank) for row in range(taken_counts[rank], counts[rank]))

    next_rows = heapq.merge(*map(list_next, range(len(counts))))
    for _, rank in itertools.islice(next_rows, rows - sum(taken_counts)):
        taken_counts[rank] += 1
    return tuple(taken_counts)
