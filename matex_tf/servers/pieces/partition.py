"""Equal pieces of the concatenation of all variables, one for each owner, whatever the variables' own sizes are.

The partitioner of XAI, section 7.3: by bytes, so that no owner has more than another, as with whole variables.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from matex_tf.costs.pieces import Hosts

ALIGNED = 64
"""Bytes: a variable is cut at multiples of these. So an entry that a processor computes beside others in a register is
computed so in a piece, too; its last bit may depend on that (rsqrt, pow)."""


def cut_variables(sizes: Sequence[int], owners: int, width: int) -> list[list[tuple[int, int]]]:
    """For each owner, of each variable of so many entries, which it owns: from the first number up to the second.

    All are of one type, of `width` bytes an entry.
    """
    total, step = sum(sizes), max(1, ALIGNED // width)
    starts = [sum(sizes[:index]) for index in range(len(sizes))]

    def within(place: int, start: int, size: int) -> int:
        return size if place >= start + size else max(place - start, 0) // step * step

    cuts = [total * owner // owners for owner in range(owners + 1)]
    return [
        [(within(first, start, size), within(last, start, size)) for start, size in zip(starts, sizes)]
        for first, last in zip(cuts, cuts[1:])
    ]


def cut_each_variable(sizes: Sequence[int], owners: int, width: int) -> list[list[tuple[int, int]]]:
    """The same, with a piece of each variable for each owner, as far as it has so many bytes.

    What is sent of one variable then goes between all ranks at once. Of two ranks, and a variable that one of them
    owns, only one would send at a time.
    """
    step = max(1, ALIGNED // width)
    given = [0] * (owners + 1)  # to the owners before each cut, of the variables so far
    pieces: list[list[tuple[int, int]]] = [[] for _ in range(owners)]
    for seen, size in zip(itertools.accumulate(sizes), sizes):
        cuts = [0]
        for owner in range(1, owners):
            wanted = (seen * owner // owners - given[owner] + step // 2) // step * step
            cuts.append(min(max(wanted, cuts[-1]), size))
        for owner, (first, last) in enumerate(itertools.pairwise([*cuts, size])):
            pieces[owner].append((first, last))
        for owner, cut in enumerate(cuts):
            given[owner] += cut
    return pieces


def choose_owners(nodes: Sequence[int], count: int) -> list[int]:
    """The ranks that own a piece, in their order: `count` of them, as evenly over the nodes as can be.

    Args:
        nodes: of each rank the one on which it is.
    """
    return sorted(_order_ranks(nodes)[:count])


def _order_ranks(nodes: Sequence[int]) -> list[int]:
    """The first rank of each node, then the second, and so on."""
    before: Counter[int] = Counter()
    places = []
    for rank, node in enumerate(nodes):
        places.append((before[node], rank))
        before[node] += 1
    return [rank for _, rank in sorted(places)]


def list_fitting_counts(hosts: Hosts, slots: float) -> list[int]:
    """The numbers of owners with which every node's memory holds what its ranks own of `slots` bytes."""
    order = _order_ranks(hosts.nodes)
    return [count for count in range(1, len(order) + 1) if hosts.find_overfull(order[:count], slots) is None]
