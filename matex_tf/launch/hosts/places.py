"""Where a run is started, and with how many ranks: on the hosts that its options name and that can be used."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from matex_tf.launch.hosts import answering
from matex_tf.launch.mpirun_command import Mpirun, list_oversubscribe_options
from matex_tf.world.hosts import host_lists
from matex_tf.world.hosts.host_lists import Host
from matex_tf.world.mpirun_options import OPENMPI


@dataclass
class Attempt:
    """How often a run is to be started, and where: on `ranks` ranks with mpirun's `options`."""

    ranks: int
    options: list[str] = field(default_factory=list)
    strategy: str = ""
    """That the ranks have chosen; empty: as was asked for."""
    hosts: Sequence[Host] = ()


class Places:
    """The hosts of a run.

    Args:
        first: what was asked for, which says how many ranks go with the places of its hosts.
        follows: whether its host files are read again.
    """

    def __init__(self, first: Attempt, mpirun: Mpirun, follows: bool = False):
        self.known = host_lists.list_hosts(first.options, os.environ)
        self.first = replace(first, hosts=self.known)
        self.mpirun, self.follows = mpirun, follows
        self._dropped: Counter[str] = Counter()
        self._all = sum(host.slots for host in self.known)

    def read_hosts(self) -> list[Host]:
        """Those that host files name now. A file without any is being written."""
        if self.follows:
            self.known = host_lists.list_hosts(self.first.options, {}) or self.known
        return self.known

    def find_answering(self) -> list[Host]:
        return answering.find_answering(self.known, self.mpirun.path, self.first.options)

    def drop_rank(self, name: str, back: bool = False) -> None:
        """Have a rank less from now on, on the host that calls itself so; or have it back. Empty: no rank is meant."""
        if name:
            here = [host.name for host in self.known if _is_named(host, name)]
            self._dropped[here[0] if here else name] += -1 if back else 1

    def make_attempt(self, left: Sequence[Host], strategy: str = "") -> Attempt:
        """On those of the known hosts that are `left`."""
        used = [Host(host.name, host.slots - self._dropped[host.name]) for host in left]
        used = [host for host in used if host.slots > 0] or list(left)
        ranks = self.first.ranks
        if self._all:
            ranks = answering.count_ranks(left, self._all, ranks)
        ranks = max(ranks - self._dropped.total(), 1)
        if list(used) == self.known:
            return Attempt(ranks, self.first.options, strategy, used)
        family = self.mpirun.family
        options = host_lists.replace_hosts(self.first.options, used, family)
        if ranks > sum(host.slots for host in used) and family == OPENMPI:
            options = [*host_lists.drop_options(options, ["map-by"]), *list_oversubscribe_options(self.mpirun)]
        return Attempt(ranks, options, strategy, used)


def _is_named(host: Host, name: str) -> bool:
    return host.name.partition(".")[0] == name.partition(".")[0] or (
        host_lists.is_here(host) and host_lists.is_here(Host(name, 1))
    )
