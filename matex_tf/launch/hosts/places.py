"""The hosts and the number of ranks of an attempt, from the run's options and the usable hosts.

A run has one `Places`, which makes all its attempts. Hosts may be lost,
come back or change in the host files, and a slow host may lose a rank. `make_attempt` then divides the ranks among the
hosts in proportion to their slots, the numbers of ranks for which mpirun has places: 5 ranks on 2 hosts of 3 slots are
2 and 3.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

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
    strategy: str = ""  # the strategy that the ranks chose; "" if they keep the requested one
    hosts: Sequence[Host] = ()  # the used hosts, with the slots that the options or host files list


class Places:
    """The hosts of a run.

    Args:
        first: the requested attempt; its ratio of ranks to slots holds for later attempts, too.
        follows_files: the host files are read again during the run.
    """

    def __init__(self, first: Attempt, mpirun: Mpirun, follows_files: bool = False):
        self.known = host_lists.list_hosts(first.options, os.environ)  # [] if the options list no hosts
        self.first = replace(first, hosts=self.known)
        self.mpirun, self.follows_files = mpirun, follows_files
        self._options_list_known = True  # whether the user's options list the known hosts
        self._dropped_ranks: Counter[str] = Counter()  # by listed name of the host; "" if no hosts are listed
        self._excluded: set[str] = set()  # names of hosts that are never used again
        self._former: dict[Host, dict[str, Host]] = {}
        """For a host whose change of slots was undone, keyed by the host with the new slots: all hosts by name, as they
        were before the change (`exclude_hosts`).
        """
        self._requested_slots = sum(host.slots for host in self.known)

    def read_hosts(self) -> list[Host]:
        """Read the host files if the run follows them. An empty file is incomplete: the known hosts remain.

        Raises OSError or ValueError if a host file cannot be read.
        """
        if self.follows_files:
            # {}: the environment, from which `__init__` takes the hosts of a batch system, does not change.
            self.known = host_lists.list_hosts(self.first.options, {}) or self.known
        return self.known

    def keep_hosts(self, attempt: Attempt) -> Attempt:
        """Return to the hosts of `attempt` for the rest of the run: the host files are read no more."""
        if self.follows_files and list(attempt.hosts) != self.known:
            self.known, self._options_list_known = list(attempt.hosts), False  # a host file may list others
        self.follows_files, self._excluded, self._former = False, set(), {}
        return self.make_attempt(self.known, attempt.strategy)

    def exclude_hosts(self, hosts: Sequence[Host], hosts_before: Sequence[Host]) -> None:
        """Undo a change of the hosts from `hosts_before` to `hosts`: never again use the added hosts.

        A host in both lists whose number of slots changed gets its former slots, as long as the host files list it with
        the new slots, and all `hosts_before` are usable. For example, from a with 2 slots to a and b with 4 each: b is
        not used again, and a counts as 2 slots.
        """
        former_hosts = {host.name: host for host in hosts_before}
        self._excluded |= {host.name for host in hosts} - former_hosts.keys()
        self._former |= {host: former_hosts for host in hosts if host.name in former_hosts and host not in hosts_before}

    def find_answering(self) -> list[Host]:
        """The known hosts that can be reached."""
        return answering.find_answering(self.known, self.mpirun.path, self.first.options)

    def describe_lost_hosts(self) -> str:
        """A message about hosts that do not answer; "" if all answer, or there is only one."""
        answering_hosts = self.find_answering() if len(self.known) > 1 else self.known
        lost_names = [host.name for host in self.known if host not in answering_hosts]
        return f"no answer from {', '.join(lost_names)}: down, or cut off" if lost_names else ""

    def find_host(self, name: str) -> str | None:
        """The listed name of the host that calls itself `name`; "" if no hosts are listed, None if it is not found."""
        if not self.known:
            return ""
        host = host_lists.find_named(self.known, name)
        return host.name if host else None

    def drop_rank(self, host: str) -> None:
        """Use one rank less on the host with the listed name `host` from now on."""
        self._dropped_ranks[host] += 1

    def restore_rank(self, host: str) -> None:
        """Undo one `drop_rank` of this host."""
        self._dropped_ranks[host] -= 1

    def count_used(self, host: Host) -> int:
        """The number of used slots of `host`. A dropped rank frees the slots of one rank: all slots / all ranks."""
        return host.slots - self._dropped_ranks[host.name] * self._requested_slots // self.first.ranks

    def make_attempt(self, usable_hosts: Sequence[Host], strategy: str = "") -> Attempt:
        """The attempt on the `usable_hosts`, without dropped ranks; a host that keeps no rank is left out."""
        # If all usable hosts are excluded, all are used: the run needs a host.
        usable_hosts = [host for host in usable_hosts if host.name not in self._excluded] or usable_hosts
        names = {host.name for host in usable_hosts}

        def restore_slots(host: Host) -> Host:
            """`host` with its slots before an undone change (`exclude_hosts`)."""
            former_hosts = self._former.get(host)
            return former_hosts[host.name] if former_hosts and former_hosts.keys() <= names else host

        hosts = [restore_slots(host) for host in usable_hosts]
        if not self._requested_slots:  # the options list no hosts
            return Attempt(max(self.first.ranks - self._dropped_ranks.total(), 1), self.first.options, strategy, hosts)
        ranks = self._share_ranks(hosts)  # by host name
        used_hosts = list(hosts)  # the hosts that keep a rank, with their listed slots
        mpirun_hosts = list(hosts)  # the same hosts, with the slots for mpirun
        if any(self._dropped_ranks[host.name] for host in hosts):
            remaining_ranks = {host.name: max(ranks[host.name] - self._dropped_ranks[host.name], 0) for host in hosts}
            ranks = remaining_ranks if any(remaining_ranks.values()) else ranks  # a run needs a rank
            used_hosts = [host for host in hosts if ranks[host.name]]
            # As many slots as ranks: mpirun then starts that number on each host, in any order of filling.
            mpirun_hosts = [Host(host.name, ranks[host.name]) for host in used_hosts]
        total_ranks, options, family = sum(ranks.values()), self.first.options, self.mpirun.family
        if mpirun_hosts == self.known and self._options_list_known:  # the user's options need no change
            return Attempt(total_ranks, options, strategy, used_hosts)
        options = host_lists.replace_hosts(options, mpirun_hosts, family)
        # The user has requested more ranks than slots. The option that allows this replaces a --map-by of the user.
        if total_ranks > sum(host.slots for host in mpirun_hosts) and family == OPENMPI:
            options = [*host_lists.drop_options(options, ["map-by"]), *list_oversubscribe_options(self.mpirun)]
        return Attempt(total_ranks, options, strategy, used_hosts)

    def _share_ranks(self, hosts: Sequence[Host]) -> dict[str, int]:
        """The number of ranks by host name, in proportion to slots; at least one rank in all.

        To round host by host could change the sum. So a host gets the rounded number of ranks for all hosts up to and
        including itself, less that number for the hosts before it.
        """
        slot_sums = accumulate(host.slots for host in hosts)
        rank_sums = [max(self.first.ranks * slot_sum // self._requested_slots, 1) for slot_sum in slot_sums]
        return {host.name: end - start for host, start, end in zip(hosts, [0, *rank_sums], rank_sums)}
