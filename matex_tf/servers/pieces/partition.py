"""Cuts variables into pieces, and chooses the ranks that own pieces, for `owners`.

The pieces of each owner have nearly the same total size, whatever the sizes of the variables: the partitioner by bytes
of the paper XAI, section 7.3. Two owners of a variable of 100 float32 entries get entries 0-47 and 48-99, because cuts
are aligned; of a later variable the first owner gets more.
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
        self._total = 0  # entries of all variables so far
        self._totals_before = [0] * owners  # entries of all variables so far, owned by the owners before each owner

    def cut(self, size: int) -> list[int]:
        """The first entry of each owner's piece of the next variable, of `size` entries, and the end of the last piece.

        Each owner has a piece of each variable, if the variable is large enough: so all ranks take part in its
        transfer.
        """
        self._total += size
        cuts = [0]
        for owner in range(1, self._owners):
            # The proportion of the preceding owners, without what they own of earlier variables.
            balanced = self._total * owner // self._owners - self._totals_before[owner]
            aligned = (balanced + self._step // 2) // self._step * self._step
            cuts.append(min(max(aligned, cuts[-1]), size))
        self._totals_before = [total + cut for total, cut in zip(self._totals_before, cuts)]
        return [*cuts, size]


def choose_owners(nodes: Sequence[int], count: int) -> list[int]:
    """The ranks that own a piece, ascending: `count` of them, distributed evenly over the nodes.

    `nodes`: the node of each rank.
    """
    return sorted(_order_ranks(nodes)[:count])


def _order_ranks(nodes: Sequence[int]) -> list[int]:
    """The first rank of each node, then the second of each, and so on."""
    ranks_of_node: Counter[int] = Counter()
    sort_keys = []
    for rank, node in enumerate(nodes):
        sort_keys.append((ranks_of_node[node], rank))
        ranks_of_node[node] += 1
    return [rank for _, rank in sorted(sort_keys)]


def list_fitting_counts(hosts: Hosts, slots: float) -> list[int]:
    """The numbers of owners with which every node has enough memory for its owners' shares.

    slots: the bytes of the optimizer's variables, which the owners hold in equal shares.
    """
    ordered_ranks = _order_ranks(hosts.nodes)
    return [count for count in range(1, len(ordered_ranks) + 1) if hosts.can_hold(ordered_ranks[:count], slots)]
