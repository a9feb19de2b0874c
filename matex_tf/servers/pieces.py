"""Equal pieces of the concatenation of all variables, one for each rank, whatever the variables' own sizes are.

The partitioner of XAI, section 7.3: by bytes, so that no owner has more than another, as with whole variables.
"""

from __future__ import annotations

from collections.abc import Sequence

ALIGNED = 64
"""Bytes: a variable is cut at multiples of these. So an entry that a processor computes beside others in a register is
computed so in a piece, too; its last bit may depend on that (rsqrt, pow)."""


def cut(sizes: Sequence[int], ranks: int, width: int) -> list[list[tuple[int, int]]]:
    """For each rank, of each variable of so many entries, which it owns: from the first number up to the second.

    All are of one type, of `width` bytes an entry.
    """
    total, step = sum(sizes), max(1, ALIGNED // width)
    starts = [sum(sizes[:index]) for index in range(len(sizes))]

    def within(place: int, start: int, size: int) -> int:
        return size if place >= start + size else max(place - start, 0) // step * step

    cuts = [total * rank // ranks for rank in range(ranks + 1)]
    return [
        [(within(first, start, size), within(last, start, size)) for start, size in zip(starts, sizes)]
        for first, last in zip(cuts, cuts[1:])
    ]
