"""Equal pieces of all variables together, one for each owner, whatever the variables' own sizes are.

The partitioner of XAI, section 7.3: by bytes, so that no owner has more than another, as with whole variables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from matex_tf.costs.pieces import Hosts

ALIGNED = 64
"""Bytes: a variable is cut at multiples of these. So an entry that a processor computes beside others in a register is
computed so in a piece, too; its last bit may depend on that (rsqrt, pow)."""


class Balance:
    """How variables of one type, of `width` bytes an entry, are cut one after the other for so many owners."""

    def __init__(self, owners: int, width: int):
        self._owners, self._step = owners, max(1, ALIGNED // width)
        self._seen = 0
        self._given = [0] * owners  # to the owners before each cut

    def cut(self, size: int) -> list[int]:
        """Where in the entries of the next variable each owner's piece begins, and where the last one's ends.

        Each owner has a piece of each variable, as far as that has so many bytes: what is sent of one variable goes
        between all ranks at once.
        """
        self._seen += size
        cuts = [0]
        for owner in range(1, self._owners):
            wanted = self._seen * owner // self._owners - self._given[owner]
            wanted = (wanted + self._step // 2) // self._step * self._step
            cuts.append(min(max(wanted, cuts[-1]), size))
        self._given = [given + cut for given, cut in zip(self._given, cuts)]
        return [*cuts, size]


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
