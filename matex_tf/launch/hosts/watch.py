"""Observes an attempt while it trains (`--adapt=ranks`): its first step, and changes of the host files.

`launch.restarts` calls `look` several times a second. `look` reads the host files, starts queries of new hosts (whether
they can be reached), and writes an offer: the number of ranks with which the run could restart now. If the ranks
accept, they write a `Change` and exit. `make_changed_attempt` returns the attempt with this change.

Example: 2 ranks train on a host of 2 slots, and the user adds a second such host to the file. Once it has answered a
query, the offer says 4 ranks.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from matex_tf.adapt import offers
from matex_tf.adapt.offers import Change, Offer
from matex_tf.launch.hosts import answering
from matex_tf.launch.hosts.changing import Changes
from matex_tf.launch.hosts.places import Attempt, Places
from matex_tf.world.hosts import host_lists
from matex_tf.world.hosts.host_lists import Host

READ_INTERVAL, QUERY_INTERVAL = 1.0, 30.0  # seconds between reads of the host files, and queries of an absent host


class Watch:
    """Context in which `look` offers the ranks of `attempt` a restart on the usable hosts: listed ones that answered.

    Args:
        places: the hosts of the run; it reads the host files, and makes attempts for given hosts.
        folder: the private folder of the run, in which it and its ranks exchange offers and changes.
        changes: the changes of the run so far; it is told of the first step (`note_step`).
        say: receives a message if no offer can be made.
    """

    def __init__(self, places: Places, attempt: Attempt, folder: str, changes: Changes, say: Callable[[str], None]):
        self.change: Change | None = None  # the change that the ranks have written, because they leave
        self.changed_at = 0.0  # when it was found. This time and the times below are seconds of time.monotonic
        self._has_trained = False  # whether the first step of this attempt is done
        self._restart_seconds = 0.0  # what a restart takes, for offers; set at the first step (`look`)
        self._places, self._attempt, self._folder = places, attempt, folder
        self._changes, self._say = changes, say
        self._started_at = time.monotonic()
        self._next_read_at = 0.0  # when the host files are to be read again
        self._listed_since = 0.0  # when the list of hosts last changed
        self._makes_offers = True  # False once a host file could not be read
        self._listed: Sequence[Host] = ()  # the hosts at the last read
        self._offer: Offer | None = None  # the last offer that was written
        self._queries: dict[str, tuple[subprocess.Popen, float]] = {}  # last query by host name: (process, its start)
        self._answered = {host.name for host in attempt.hosts}  # names of hosts that can be reached

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        answering.end_children(child for child, _ in self._queries.values())

    def look(self) -> bool:
        """Note the first step of the attempt and the change that the ranks ask for, and renew the offer.

        Returns True, because `process.wait_for_command` stops calling a function that returns False.
        """
        now = time.monotonic()
        if not self._has_trained and offers.has_trained(self._folder):
            self._has_trained = True
            # How long a restart takes: the seconds of the change which this step completes (`note_step` returns 0 if it
            # completes none), else the seconds of an earlier change, else the time of this start up to its first step.
            change_seconds = self._changes.note_step() or self._changes.offer.restart_seconds
            self._restart_seconds = change_seconds or now - self._started_at
        if self.change is None and (change := offers.read_change(self._folder)):
            self.change, self.changed_at = change, now
        if self._makes_offers and self._has_trained and self.change is None and now >= self._next_read_at:
            self._next_read_at = now + READ_INTERVAL
            try:
                self._make_offer(now)
            except (OSError, ValueError) as error:
                self._makes_offers = False
                self._say(f"--adapt: changes of the list of hosts are not offered from now on: {error}")
        return True

    def make_changed_attempt(self, change: Change) -> Attempt:
        """The attempt that carries out `change`, which undoes no earlier change (see `Changes.make_change`).

        A change is of one of three kinds: another strategy on the same hosts, one rank less on a host (`dropped_host`),
        or the hosts that are usable now. `Changes` has told `places` of a dropped rank, so the hosts stay the same.
        """
        hosts, strategy = self._attempt.hosts, self._attempt.strategy
        if change.strategy is not None:
            strategy = change.strategy
        elif not change.dropped_host:  # a change to the usable hosts
            hosts = self._list_usable() or hosts  # the former hosts if none is usable any more
        return self._places.make_attempt(hosts, strategy)

    def _list_usable(self) -> list[Host]:
        """The listed hosts that have answered."""
        return [host for host in self._places.known if host.name in self._answered]

    def _make_offer(self, now: float) -> None:
        """Read the host files, and write the offer for the usable hosts, unless it equals the last one.

        An offer with a `reason_to_leave` makes the ranks leave at once; otherwise they leave only if that saves time.
        """
        previous_hosts, self._listed = self._listed, list(self._places.read_hosts())
        if previous_hosts != self._listed:
            self._listed_since = now
            return  # the file may be incomplete while it is written
        self._query_hosts(now)
        usable_hosts = self._list_usable()
        ranks = self._places.make_attempt(usable_hosts).ranks if usable_hosts else self._attempt.ranks
        slots_by_host = {host.name: host.slots for host in self._listed}
        # The ranks must leave these hosts: the host files no longer list them, or list fewer slots than the run uses.
        reduced_hosts = [
            host for host in self._attempt.hosts if self._places.count_used(host) > slots_by_host.get(host.name, 0)
        ]
        if reduced_hosts and len(usable_hosts) < len(self._listed) and now - self._listed_since < answering.SECONDS:
            # Some listed hosts have not answered yet, but have had less time than hosts get to answer. An offer now
            # would make the ranks leave without these hosts, and restart a second time once they answer.
            return
        reasons = [
            f"{host.name} has {slots_by_host.get(host.name, 0)} of {host.slots} slots left" for host in reduced_hosts
        ]
        reason = ", ".join(reasons) if usable_hosts else ""  # without a usable host, the ranks cannot go anywhere
        # `Changes.offer` has the parts of an offer that earlier changes determine, such as a change that may be undone.
        offer = replace(self._changes.offer, ranks=ranks, restart_seconds=self._restart_seconds, reason_to_leave=reason)
        if offer != self._offer:
            self._offer = offer
            offers.write_offer(offer, self._folder)

    def _query_hosts(self, now: float) -> None:
        """Add hosts that have answered to `_answered`, and query the other listed hosts, the absent ones.

        A query is a process that succeeds if it reaches the host. It is ended after `answering.SECONDS`, and repeated
        `QUERY_INTERVAL` after its start. This host needs no query.
        """
        listed_names = {host.name for host in self._listed}
        self._answered &= listed_names  # a host that is listed again is queried again
        answering.end_children(self._queries.pop(name)[0] for name in self._queries.keys() - listed_names)
        absent_hosts = [host for host in self._listed if host.name not in self._answered]
        self._answered |= {host.name for host in absent_hosts if host_lists.is_here(host)}
        for host in absent_hosts:
            child, started_at = self._queries.get(host.name, (None, -QUERY_INTERVAL))  # not queried yet: query at once
            if child is not None and child.poll() == 0:
                self._answered.add(host.name)
            if child is not None and child.poll() is None and now - started_at > answering.SECONDS:
                answering.end_children([child])
            is_running = child is not None and child.poll() is None
            if host.name not in self._answered and not is_running and now - started_at >= QUERY_INTERVAL:
                queries = answering.ask_hosts([host], self._places.mpirun.path, self._places.first.options)
                self._queries[host.name] = queries[host.name], now
