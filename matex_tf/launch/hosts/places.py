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
    """Those that it uses, with the places that were named."""


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
        self._as_named = True
        self._dropped: Counter[str] = Counter()
        self._excluded: set[str] = set()
        self._instead: dict[tuple[Host, ...], Sequence[Host]] = {}
        self._all = sum(host.slots for host in self.known)

    def read_hosts(self) -> list[Host]:
        """Those that host files name now. A file without any is being written.

        Raises:
            OSError, ValueError: it cannot be read.
        """
        if self.follows:
            self.known = host_lists.list_hosts(self.first.options, {}) or self.known
        return self.known

    def keep_hosts(self, attempt: Attempt) -> Attempt:
        """From now on the hosts of `attempt` are those that are known, whatever is named; that attempt again."""
        if self.follows and list(attempt.hosts) != self.known:
            self.known, self._as_named = list(attempt.hosts), False  # a host file may name others
        self.follows, self._excluded, self._instead = False, set(), {}
        return self.make_attempt(self.known, attempt.strategy)

    def exclude_hosts(self, hosts: Sequence[Host], before: Sequence[Host]) -> None:
        """Use none of `hosts` again that was not there `before`; where there is none, not just these places."""
        added = {host.name for host in hosts} - {host.name for host in before}
        self._excluded |= added
        if not added:
            self._instead[tuple(hosts)] = before

    def find_answering(self) -> list[Host]:
        return answering.find_answering(self.known, self.mpirun.path, self.first.options)

    def describe_gone(self) -> str:
        """Which hosts of several do not answer, in words; empty where all do."""
        answering = self.find_answering() if len(self.known) > 1 else self.known
        gone = [host.name for host in self.known if host not in answering]
        return f"no answer from {', '.join(gone)}: down, or cut off" if gone else ""

    def find_host(self, name: str) -> str | None:
        """The host that calls itself `name`, as it is listed; empty where none is listed, None if it is not found."""
        here = host_lists.find_named(self.known, name)
        return here.name if here else None if self.known else ""

    def drop_rank(self, host: str) -> None:
        """Have a rank less from now on, on the `host` that is listed so."""
        self._dropped[host] += 1

    def put_back(self, host: str) -> None:
        """Have one back that was dropped there."""
        self._dropped[host] -= 1

    def count_used(self, host: Host) -> int:
        """How many of the places of `host` ranks use that were not dropped."""
        return host.slots - self._dropped[host.name] * self._all // self.first.ranks

    def make_attempt(self, left: Sequence[Host], strategy: str = "") -> Attempt:
        """On those of the known hosts that are `left`, but for what is to be avoided."""
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
            # As many places as ranks: mpirun is to start them there, however many it fills first.
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
        """By host the ranks that go with its places: together `answering.count_ranks`, one at least."""
        counts = [answering.count_ranks(left[: at + 1], self._all, self.first.ranks) for at in range(len(left))]
        return {host.name: upto - before for host, before, upto in zip(left, [0, *counts], counts)}
