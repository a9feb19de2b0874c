"""Splits all variables into pieces of equal total size, one for each owner, regardless of the sizes of variables.

The partitioner of XAI, section 7.3: by bytes, so that no owner has more than another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from matex_tf.costs.pieces import Hosts

ALIGNED = 64
"""Bytes: variables are cut at multiples of this. A vector register then holds the same entries in a piece as in the
complete variable; the last bit of a result may depend on that (rsqrt, pow).
"""


class Balance:
    """Cuts variables of one dtype, with `width` bytes an entry, for `owners` owners, one variable after the other."""

    def __init__(self, owners: int, width: int):
        self._owners, self._step = owners, max(1, ALIGNED // width)
        self._seen = 0
        self._given = [0] * owners  # to the owners before each cut

    def cut(self, size: int) -> list[int]:
        """The first entry of each owner's piece of the next variable, of `size` entries, and the end of the last piece.

        Each owner has a piece of each variable, if the variable is large enough: so all ranks take part in its
        transfer.
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
    """The ranks that own a piece, ascending: `count` of them, distributed evenly over the nodes.

    Args:
        nodes: the node of each rank.
    """
    return sorted(_order_ranks(nodes)[:count])


def _order_ranks(nodes: Sequence[int]) -> list[int]:
    """The first rank of each node, then the second of each, and so on."""
    before: Counter[int] = Counter()
    places = []
    for rank, node in enumerate(nodes):
        places.append((before[node], rank))
        before[node] += 1
    return [rank for _, rank in sorted(places)]


def list_fitting_counts(hosts: Hosts, slots: float) -> list[int]:
    """The numbers of owners with which every node has enough memory for its share of `slots` bytes."""
    order = _order_ranks(hosts.nodes)
    return [count for count in range(1, len(order) + 1) if hosts.find_overfull(order[:count], slots) is None]
