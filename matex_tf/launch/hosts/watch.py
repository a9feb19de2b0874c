"""Observes a run while it trains (`--adapt=ranks`): its first step, and changes of the list of hosts."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType

from matex_tf.adapt import offers
from matex_tf.adapt.offers import Change, Offer
from matex_tf.launch.hosts import answering
from matex_tf.launch.hosts.changing import Changes
from matex_tf.launch.hosts.places import Attempt, Places
from matex_tf.world.hosts import host_lists
from matex_tf.world.hosts.host_lists import Host

EVERY, AGAIN = 1.0, 30.0
"""Seconds between reads of the host files, and between queries of an absent host."""


class Watch:
    """Context in which `look` offers the ranks of `attempt` the attempts that are now possible.

    Args:
        folder: the private folder of the run.
        changes: the changes of the run; they are notified of the first step.
        say: receives a message if no offer can be made.
    """

    def __init__(self, places: Places, attempt: Attempt, folder: str, changes: Changes, say: Callable[[str], None]):
        self.change: Change | None = None
        self.changed_at = 0.0
        self.has_trained = False
        self.seconds = 0.0
        """The duration of the last change; before any change, the time from this start to its first step."""
        self._places, self._attempt, self._folder = places, attempt, folder
        self._changes, self._say = changes, say
        self._began = time.monotonic()
        self._due = self._since = 0.0
        self._offers = True
        self._named: Sequence[Host] = ()
        self._offer: Offer | None = None
        self._asked: dict[str, tuple[subprocess.Popen, float]] = {}
        self._answered = {host.name for host in attempt.hosts}

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        answering.end_children(child for child, _ in self._asked.values())

    def look(self) -> bool:
        """Look for news without waiting. Returns True, to be called again several times a second."""
        now = time.monotonic()
        if not self.has_trained and offers.has_trained(self._folder):
            self.has_trained = True
            self.seconds = self._changes.note_step() or self._changes.offer.restart_seconds or now - self._began
        if self.change is None and (change := offers.read_change(self._folder)):
            self.change, self.changed_at = change, now
        if self._offers and self.has_trained and self.change is None and now >= self._due:
            self._due = now + EVERY
            try:
                self._make_offer(now)
            except (OSError, ValueError) as error:
                self._offers = False
                self._say(f"--adapt: changes of the list of hosts are not offered from now on: {error}")
        return True

    def make_changed_attempt(self, change: Change) -> Attempt:
        """The attempt that carries out `change`."""
        hosts, strategy = self._attempt.hosts, self._attempt.strategy
        if change.strategy is not None:
            strategy = change.strategy
        elif not change.dropped_host:  # otherwise the ranks did not ask for new hosts
            hosts = self._list_usable() or hosts
        return self._places.make_attempt(hosts, strategy)

    def _list_usable(self) -> list[Host]:
        """The listed hosts that have answered."""
        return [host for host in self._places.known if host.name in self._answered]

    def _make_offer(self, now: float) -> None:
        named = self._places.read_hosts()
        was, self._named = self._named, list(named)
        if was != self._named:
            self._since = now
            return  # the file may be incomplete while it is written
        self._ask_hosts(now)
        usable = self._list_usable()
        ranks = self._places.make_attempt(usable).ranks if usable else self._attempt.ranks
        places = {host.name: host.slots for host in self._named}
        used = {host: self._places.count_used(host) for host in self._attempt.hosts}
        less = [host for host, slots in used.items() if slots > places.get(host.name, 0)]
        if less and len(usable) < len(self._named) and now - self._since < answering.SECONDS:
            return  # wait for all new hosts, so that the ranks leave only once
        must = ""
        if less and usable:
            must = ", ".join(f"{host.name} has {places.get(host.name, 0)} of {host.slots} places left" for host in less)
        offer = replace(self._changes.offer, ranks=ranks, restart_seconds=self.seconds, reason_to_leave=must)
        if offer != self._offer:
            self._offer = offer
            offers.write_offer(offer, self._folder)

    def _ask_hosts(self, now: float) -> None:
        """Query absent hosts, and note those that have answered."""
        self._answered &= {host.name for host in self._named}
        away = [host for host in self._named if host.name not in self._answered]
        self._answered |= {host.name for host in away if host_lists.is_here(host)}
        for host in away:
            child, since = self._asked.get(host.name, (None, -AGAIN))
            if child is not None and child.poll() == 0:
                self._answered.add(host.name)
            if child is not None and child.poll() is None and now - since > answering.SECONDS:
                answering.end_children([child])
            if host.name in self._answered or now - since < AGAIN or (child is not None and child.poll() is None):
                continue
            (again,) = answering.ask_hosts([host], self._places.mpirun.path, self._places.first.options).values()
            self._asked[host.name] = again, now
