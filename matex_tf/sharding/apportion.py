"""How many rows each rank takes of a step, where ranks hold shares of different sizes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from matex_tf.sharding import row_shares


def apportion_rows(counts: Sequence[int], rows: int) -> list[int]:
    """How many rows of each rank are among the first `rows`, when ranks holding `counts` rows are consumed evenly.

    Row i of a rank with n rows stands at (i + 1/2) / n, and rows are taken in that order, at equal places the lower
    rank's first (Webster's method of apportionment, so a rank's number never falls as `rows` grows and is within one
    of its proportion for two ranks).
    """
    return list(_apportion_rows(tuple(int(count) for count in counts), int(rows)))


@lru_cache(maxsize=256)
def _apportion_rows(counts: tuple[int, ...], rows: int) -> tuple[int, ...]:
    total = sum(counts)
    rows = max(0, min(rows, total))
    if total == 0:
        return counts
    # All rows that stand at rows/total or before; off by at most half a row a rank, so few corrections follow.
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
    """Rows of each rank in global step `step` (from 0) when shares of `counts` rows are consumed `batch_size` a step.

    They sum to `batch_size`, in the last step to what is left, and each rank gives its rows in order, each once. A rank
    gives 0 rows to a step where its proportion is less than one. Shares that were dealt in batches of
    `dealt_batch_size`, the same as `batch_size`, give the very rows of each batch.
    """

    def taken(rows: int) -> list[int]:
        if dealt_batch_size is None:
            return apportion_rows(counts, rows)
        # Ranks without any are the last ones; dealt to the others alone, a batch comes to them as it did to all.
        some = sum(count > 0 for count in counts)
        return count_rows_taken(sum(counts), dealt_batch_size, some, rows) + [0] * (len(counts) - some)

    before, after = taken(step * batch_size), taken((step + 1) * batch_size)
    return [b - a for a, b in zip(before, after, strict=True)]


def count_rows_taken(total: int, batch_size: int, size: int, rows: int) -> list[int]:
    """How many rows of each rank are among the first `rows` of `total`, when of every `batch_size` rows in turn each
    rank has its slice. `rows` is `total` or a multiple of `batch_size`.
    """
    rows = max(0, min(rows, total))
    whole, rest = divmod(rows, batch_size)
    slices = [
        (row_shares.deal_block(batch_size, rank, size), row_shares.deal_block(rest, rank, size)) for rank in range(size)
    ]
    return [whole * (stop - start) + rest_stop - rest_start for (start, stop), (rest_start, rest_stop) in slices]
