"""The rows that each rank contributes to a step, if the ranks hold shards of different sizes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from matex_tf.sharding import slice_bounds


def apportion_rows(counts: Sequence[int], rows: int) -> list[int]:
    """The number of rows of each rank among the first `rows`, if ranks with `counts` rows are consumed evenly.

    Row i of a rank with n rows has the position (i + 1/2) / n. Rows are taken in the order of their positions, of equal
    ones that of the lower rank first (Webster's method of apportionment). So a rank's number never falls as `rows`
    grows; for two ranks it is within one of its proportion.
    """
    return list(_apportion_rows(tuple(int(count) for count in counts), int(rows)))


@lru_cache(maxsize=256)
def _apportion_rows(counts: tuple[int, ...], rows: int) -> tuple[int, ...]:
    total = sum(counts)
    rows = max(0, min(rows, total))
    if total == 0:
        return counts
    # All rows at positions up to rows/total: at most half a row a rank off, so few corrections follow.
    taken = [(2 * rows * count + total) // (2 * total) for count in counts]
    excess = sum(taken) - rows

    def place(rank: int, row: int) -> Fraction:
        return Fraction(2 * row + 1, 2 * counts[rank])

    if excess > 0:
        last = [(-place(rank, taken[rank] - 1), -rank) for rank in range(len(counts)) if taken[rank]]
        heapq.heapify(last)
        for _ in range(excess):
            rank = -heapq.heappop(last)[1]
            taken[rank] -= 1
            if taken[rank]:
                heapq.heappush(last, (-place(rank, taken[rank] - 1), -rank))
    elif excess < 0:
        following = [(place(rank, taken[rank]), rank) for rank in range(len(counts)) if taken[rank] < counts[rank]]
        heapq.heapify(following)
        for _ in range(-excess):
            rank = heapq.heappop(following)[1]
            taken[rank] += 1
            if taken[rank] < counts[rank]:
                heapq.heappush(following, (place(rank, taken[rank]), rank))
    return tuple(taken)


def apportion_step_rows(
    counts: Sequence[int], step: int, batch_size: int, dealt_batch_size: int | None = None
) -> list[int]:
    """The rows of each rank in global step `step` (from 0), if shards of `counts` rows are consumed `batch_size` a
    step.

    They sum to `batch_size`; in the last step to the remainder. Each rank gives its rows in order, each once, and 0
    rows to a step in which its proportion is less than one. Shards that were dealt in batches of `dealt_batch_size`,
    equal to `batch_size`, give the original rows of each batch.
    """

    def taken(rows: int) -> list[int]:
        if dealt_batch_size is None:
            return apportion_rows(counts, rows)
        # Ranks without rows are the last ones: without them the batch is dealt as it was with all.
        some = sum(count > 0 for count in counts)
        return count_rows_taken(sum(counts), dealt_batch_size, some, rows) + [0] * (len(counts) - some)

    before, after = taken(step * batch_size), taken((step + 1) * batch_size)
    return [b - a for a, b in zip(before, after, strict=True)]


def count_rows_taken(total: int, batch_size: int, size: int, rows: int) -> list[int]:
    """The number of rows of each rank among the first `rows` of `total`, if each rank has its slice of each batch of
    `batch_size` rows. `rows` is `total` or a multiple of `batch_size`.
    """
    rows = max(0, min(rows, total))
    whole, rest = divmod(rows, batch_size)
    slices = [
        (slice_bounds.deal_block(batch_size, rank, size), slice_bounds.deal_block(rest, rank, size))
        for rank in range(size)
    ]
    return [whole * (stop - start) + rest_stop - rest_start for (start, stop), (rest_start, rest_stop) in slices]
