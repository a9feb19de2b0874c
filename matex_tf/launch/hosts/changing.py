"""The changes that the ranks of a run ask for (`--adapt=ranks`): how the run goes on, and how it goes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from matex_tf.adapt import offers
from matex_tf.adapt.offers import Change, Offer
from matex_tf.launch.hosts.places import Attempt, Places


@dataclass(frozen=True)
class _Made:
    """A change, what the run was before it, and when that was left."""

    change: Change
    before: Attempt
    left: float
    without: str | None = None
    """The host, as it is listed, that has a rank less by it, or has it back; None where none has."""


class Changes:
    """Those of one run.

    Args:
        may_choose: whether the strategy is the ranks' to choose.
        say: is told of each change, once its first step is made.
    """

    def __init__(self, places: Places, may_choose: bool, say: Callable[[str], None]):
        self.offer = Offer(places.first.ranks, 0.0, may_choose=may_choose)
        """What the ranks are told whatever hosts there are; its seconds are 0 until there was a change."""
        self._places, self._say = places, say
        self._pending: _Made | None = None  # no step was made since
        self._last: _Made | None = None  # may be undone

    def note_step(self) -> float:
        """A step was made. The seconds of the change that ends with it; 0 if none does."""
        made, self._pending = self._pending, None
        if made is None:
            return 0.0
        seconds = made.change.seconds + time.monotonic() - made.left
        self._say(f"--adapt: {made.change.what} from {made.change.where} on: {made.change.why}. "
                  f"The change took {seconds:.1f} s")  # fmt: skip
        self.offer = replace(self.offer, seconds=seconds)
        return seconds

    def make_change(self, change: Change, left: float, attempt: Attempt, find: Callable[[Change], Attempt]) -> Attempt:
        """That by which the run goes on from `attempt`, which the ranks have left at the time `left`.

        Args:
            find: gives it, of a change that undoes none.
        """
        last = self._last
        self.forget_last()
        if change.undoes and last is not None:
            self._pending = _Made(change, attempt, left, last.without)
            return self._go_back(last, attempt)
        self._pending = None
        without = self._places.find_host(change.without) if change.without else None
        if change.without and without is None:
            names = ", ".join(host.name for host in self._places.known)
            self._say(f"--adapt: none of the hosts {names} is known to be {change.without}; going on as before")
            return self._places.keep_hosts(attempt)
        if without is not None:
            self._places.drop_rank(without)
        following = find(change)
        if following.ranks != change.ranks:  # hosts have come or gone since the ranks were offered them
            what = offers.describe_ranks(following.ranks, attempt.ranks)
            change = replace(change, ranks=following.ranks, what=what)
        self._pending = _Made(change, attempt, left, without)
        if not change.must:
            self._last = self._pending
            of_ranks = offers.describe_ranks(attempt.ranks, following.ranks)
            undone = of_ranks if change.strategy is None else "the former strategy"
            self.offer = replace(self.offer, took=change.took, undone=f"{undone} again")
        return following

    def _go_back(self, last: _Made, attempt: Attempt) -> Attempt:
        """What the run was before `last`, which is not tried again: it made `attempt` of it."""
        if last.change.strategy is not None:
            self.offer = replace(self.offer, may_choose=False)
        elif last.without is not None:
            self._places.put_back(last.without)
            self.offer = replace(self.offer, keep=[*self.offer.keep, last.change.without])
        else:
            self._places.exclude_hosts(attempt.hosts, last.before.hosts)
        return self._places.make_attempt(last.before.hosts, last.before.strategy)

    def give_up_change(self, why: str) -> Attempt | None:
        """That by which a run goes on that has ended before the first step of a change; None if it was no such end."""
        made = self._pending
        if made is None or made.change.must:
            return None
        self._pending = None
        self.forget_last()
        if made.without is not None and made.change.undoes:
            self._places.drop_rank(made.without)
        elif made.without is not None:
            self._places.put_back(made.without)
        self._say(f"--adapt: {made.change.what} came to no step ({why}); going on as before")
        return self._places.keep_hosts(made.before)

    def forget_last(self) -> None:
        """The last change is not to be undone any more."""
        self._last = None
        self.offer = replace(self.offer, took=0.0, undone="")
