"""Changes of a run on request of its ranks (`--adapt=ranks`), and their reversal."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from matex_tf.adapt import offers
from matex_tf.adapt.offers import Change, Offer
from matex_tf.launch.hosts.places import Attempt, Places


@dataclass(frozen=True)
class _AppliedChange:
    """A change, the attempt before it, and the time at which the ranks left that attempt."""

    change: Change
    before: Attempt
    left: float
    without: str | None = None
    """The listed name of the host that the change takes a rank from, or gives it back; None if there is none."""


class Changes:
    """The changes of one run.

    Args:
        may_choose: the ranks may choose the strategy.
        say: receives a message about each change, after its first step.
    """

    def __init__(self, places: Places, may_choose: bool, say: Callable[[str], None]):
        self.offer = Offer(places.first.ranks, 0.0, may_choose=may_choose)
        """The offer that does not depend on hosts. Its `restart_seconds` are 0 before the first change."""
        self._places, self._say = places, say
        self._pending: _AppliedChange | None = None  # a change without a first step so far
        self._last: _AppliedChange | None = None  # a change that may be undone

    def note_step(self) -> float:
        """Note that a step was computed. Returns the duration of the change that this step completes, in seconds; 0 if
        none.
        """
        applied, self._pending = self._pending, None
        if applied is None:
            return 0.0
        seconds = applied.change.saving_seconds + time.monotonic() - applied.left
        self._say(f"--adapt: {applied.change.what} from {applied.change.saved_at} on: {applied.change.why}. "
                  f"The change took {seconds:.1f} s")  # fmt: skip
        self.offer = replace(self.offer, restart_seconds=seconds)
        return seconds

    def make_change(self, change: Change, left: float, attempt: Attempt, find: Callable[[Change], Attempt]) -> Attempt:
        """The attempt after a change, which replaces `attempt`. The ranks left that at the time `left`.

        Args:
            find: returns the new attempt for a change that undoes no other change.
        """
        last = self._last
        self.forget_last()
        if change.undoes and last is not None:
            self._pending = _AppliedChange(change, attempt, left, last.without)
            return self._undo_change(last, attempt)
        self._pending = None
        without = self._places.find_host(change.dropped_host) if change.dropped_host else None
        if change.dropped_host and without is None:
            names = ", ".join(host.name for host in self._places.known)
            self._say(f"--adapt: none of the hosts {names} is known to be {change.dropped_host}; continuing as before")
            return self._places.keep_hosts(attempt)
        if without is not None:
            self._places.drop_rank(without)
        following = find(change)
        if following.ranks != change.ranks:  # the hosts have changed since the offer
            what = offers.describe_ranks(following.ranks, attempt.ranks)
            change = replace(change, ranks=following.ranks, what=what)
        self._pending = _AppliedChange(change, attempt, left, without)
        if not change.is_forced:
            self._last = self._pending
            of_ranks = offers.describe_ranks(attempt.ranks, following.ranks)
            undone = of_ranks if change.strategy is None else "the former strategy"
            self.offer = replace(
                self.offer, step_seconds_before=change.step_seconds_before, undo_text=f"{undone} again"
            )
        return following

    def _undo_change(self, last: _AppliedChange, attempt: Attempt) -> Attempt:
        """The attempt before `last`, which had led to `attempt`. That change is not offered again."""
        if last.change.strategy is not None:
            self.offer = replace(self.offer, may_choose=False)
        elif last.without is not None:
            self._places.put_back(last.without)
            self.offer = replace(self.offer, kept_hosts=[*self.offer.kept_hosts, last.change.dropped_host])
        else:
            self._places.exclude_hosts(attempt.hosts, last.before.hosts)
        return self._places.make_attempt(last.before.hosts, last.before.strategy)

    def give_up_change(self, why: str) -> Attempt | None:
        """The next attempt if the run ended before the first step of a change; None if it did not."""
        applied = self._pending
        if applied is None or applied.change.is_forced:
            return None
        self._pending = None
        self.forget_last()
        if applied.without is not None and applied.change.undoes:
            self._places.drop_rank(applied.without)
        elif applied.without is not None:
            self._places.put_back(applied.without)
        self._say(f"--adapt: {applied.change.what}: the run ended before its first step ({why}); continuing as before")
        return self._places.keep_hosts(applied.before)

    def forget_last(self) -> None:
        """The last change can no longer be undone."""
        self._last = None
        self.offer = replace(self.offer, step_seconds_before=0.0, undo_text="")
