"""The hosts and the number of ranks of an attempt, from the run's options and the usable hosts."""

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
    """One start of a run: on `ranks` ranks, with mpirun's `options`."""

    ranks: int
    options: list[str] = field(default_factory=list)
    strategy: str = ""
    """The strategy that the ranks chose; "": the requested one."""
    hosts: Sequence[Host] = ()
    """The used hosts, with their listed slots."""


class Places:
    """The hosts of a run.

    Args:
        first: the requested attempt; it sets the number of ranks for each slot.
        follows: the host files are read again during the run.
    """

    def __init__(self, first: Attempt, mpirun: Mpirun, follows: bool = False):
        self.known = host_lists.list_hosts(first.options, os.environ)
        self.first = replace(first, hosts=self.known)
        self.mpirun, self.follows = mpirun, follows
        self._as_named = True
        self._dropped: Counter[str] = Counter()
        self._excluded: set[str] = set()
        self._instead: dict[tuple[Host, ...], Sequence[Host]] = {}
        self._all = sum(host.slots for host in self.known)

    def read_hosts(self) -> list[Host]:
        """Read the hosts from the host files. An empty file is taken to be incomplete: the known hosts remain.

        Raises:
            OSError, ValueError: a host file cannot be read.
        """
        if self.follows:
            self.known = host_lists.list_hosts(self.first.options, {}) or self.known
        return self.known

    def keep_hosts(self, attempt: Attempt) -> Attempt:
        """Fix the hosts to those of `attempt`, whatever the host files list from now on. Returns that attempt again."""
        if self.follows and list(attempt.hosts) != self.known:
            self.known, self._as_named = list(attempt.hosts), False  # a host file may list others
        self.follows, self._excluded, self._instead = False, set(), {}
        return self.make_attempt(self.known, attempt.strategy)

    def exclude_hosts(self, hosts: Sequence[Host], before: Sequence[Host]) -> None:
        """Never again use hosts that are in `hosts`, but not in `before`. If there are none, replace exactly these
        slots by `before`.
        """
        added = {host.name for host in hosts} - {host.name for host in before}
        self._excluded |= added
        if not added:
            self._instead[tuple(hosts)] = before

    def find_answering(self) -> list[Host]:
        return answering.find_answering(self.known, self.mpirun.path, self.first.options)

    def describe_gone(self) -> str:
        """A message about hosts that do not answer; "" if all answer, or there is only one."""
        answering = self.find_answering() if len(self.known) > 1 else self.known
        gone = [host.name for host in self.known if host not in answering]
        return f"no answer from {', '.join(gone)}: down, or cut off" if gone else ""

    def find_host(self, name: str) -> str | None:
        """The listed name of the host that calls itself `name`; "" if no hosts are listed, None if it is not found."""
        here = host_lists.find_named(self.known, name)
        return here.name if here else None if self.known else ""

    def drop_rank(self, host: str) -> None:
        """Use one rank less on the listed host `host` from now on."""
        self._dropped[host] += 1

    def put_back(self, host: str) -> None:
        """Use one dropped rank of this host again."""
        self._dropped[host] -= 1

    def count_used(self, host: Host) -> int:
        """The number of slots of `host` that are used, without the share of dropped ranks."""
        return host.slots - self._dropped[host.name] * self._all // self.first.ranks

    def make_attempt(self, left: Sequence[Host], strategy: str = "") -> Attempt:
        """The attempt on the hosts `left`, without excluded hosts and ranks."""
        left = [host for host in left if host.name not in self._excluded] or left
        made = self._make_attempt(left, strategy)
        instead = self._instead.get(tuple(made.hosts), ())
        is_listed = {host.name for host in instead} <= {host.name for host in left}
        return self._make_attempt(instead, strategy) if instead and is_listed else made

    def _make_attempt(self, left: Sequence[Host], strategy: str) -> Attempt:
        if not self._all:
            return Attempt(max(self.first.ranks - self._dropped.total(), 1), self.first.options, strategy, left)
        ranks, used, hosts = self._share_ranks(left), list(left), list(left)
        if any(self._dropped[host.name] for host in left):
            kept = {host.name: max(ranks[host.name] - self._dropped[host.name], 0) for host in left}
            ranks = kept if any(kept.values()) else ranks
            # As many slots as ranks: mpirun then starts that number on each host, in any order of filling.
            used = [Host(host.name, ranks[host.name]) for host in left if ranks[host.name]]
            hosts = [host for host in left if ranks[host.name]]
        total, options, family = sum(ranks.values()), self.first.options, self.mpirun.family
        if used == self.known and self._as_named:
            return Attempt(total, options, strategy, hosts)
        options = host_lists.replace_hosts(options, used, family)
        if total > sum(host.slots for host in used) and family == OPENMPI:
            options = [*host_lists.drop_options(options, ["map-by"]), *list_oversubscribe_options(self.mpirun)]
        return Attempt(total, options, strategy, hosts)

    def _share_ranks(self, left: Sequence[Host]) -> dict[str, int]:
        """The number of ranks for each host, in proportion to its slots; the sum is `answering.count_ranks`, at least
        1.
        """
        counts = [answering.count_ranks(left[: at + 1], self._all, self.first.ranks) for at in range(len(left))]
        return {host.name: upto - before for host, before, upto in zip(left, [0, *counts], counts)}
