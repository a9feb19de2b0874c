"""Changes of a run on request of its ranks (`--adapt=ranks`), and their reversal.

A change is another strategy, other hosts, or one rank less on a slow host. `launch.restarts` calls `make_change` after
the ranks have left, and `Watch`, which follows an attempt, calls `note_step` at the first step after the restart. If
steps are then slower than before, the ranks may ask to undo the change. If the first step is never reached,
`give_up_change` goes back.
"""

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
    left_at: float  # seconds of time.monotonic
    reduced_host: str | None = None
    """The name, in the options, of the host that loses a rank or gets one back; "" if the options list no hosts. None:
    the change concerns no single host.
    """


class Changes:
    """The changes of one run.

    Args:
        may_choose: the ranks may choose the strategy.
        say: receives a message about each change, after its first step.
    """

    def __init__(self, places: Places, may_choose: bool, say: Callable[[str], None]):
        self.offer = Offer(places.first.ranks, 0.0, may_choose=may_choose)
        """The offer without the parts that `Watch` adds from hosts. `restart_seconds` are 0 before a change."""
        self._places, self._say = places, say
        self._pending: _AppliedChange | None = None  # the change whose first step is still to come
        self._last: _AppliedChange | None = None  # the change that the ranks may undo

    def note_step(self) -> float:
        """Note the first step of an attempt. Returns the seconds of the change that it completes; 0 if none."""
        applied_change, self._pending = self._pending, None
        if applied_change is None:
            return 0.0
        change = applied_change.change
        seconds = change.saving_seconds + time.monotonic() - applied_change.left_at
        self._say(f"--adapt: {change.what} from {change.saved_at} on: {change.why}. The change took {seconds:.1f} s")
        self.offer = replace(self.offer, restart_seconds=seconds)
        return seconds

    def make_change(
        self, change: Change, left_at: float, attempt: Attempt, make_attempt: Callable[[Change], Attempt]
    ) -> Attempt:
        """Apply `change` to `attempt`, which the ranks left at the time `left_at`. Returns the next attempt.

        If the change undoes the last one, the attempt before that one is made again. If it drops a rank of a host that
        is not listed, nothing changes. Else `make_attempt` returns the new attempt.
        """
        last_change = self._last
        self.forget_last()  # only the newest change can be undone
        if change.undoes and last_change is not None:
            self._pending = _AppliedChange(change, attempt, left_at, last_change.reduced_host)
            return self._undo_change(last_change, attempt)
        self._pending = None
        # The ranks name the host that loses a rank by its own name, the options by any name that reaches the host.
        reduced_host = self._places.find_host(change.dropped_host) if change.dropped_host else None
        if change.dropped_host and reduced_host is None:
            names = ", ".join(host.name for host in self._places.known)
            self._say(f"--adapt: none of the hosts {names} is known to be {change.dropped_host}; continuing as before")
            return self._places.keep_hosts(attempt)
        if reduced_host is not None:
            self._places.drop_rank(reduced_host)
        next_attempt = make_attempt(change)
        if next_attempt.ranks != change.ranks:  # the hosts have changed since the offer
            ranks_text = offers.describe_ranks(next_attempt.ranks, attempt.ranks)
            change = replace(change, ranks=next_attempt.ranks, what=ranks_text)
        self._pending = _AppliedChange(change, attempt, left_at, reduced_host)
        if not change.is_forced:  # offer to undo the change
            self._last = self._pending
            former_text = "the former strategy"
            if change.strategy is None:
                former_text = offers.describe_ranks(attempt.ranks, next_attempt.ranks)
            seconds_before = change.step_seconds_before
            self.offer = replace(self.offer, step_seconds_before=seconds_before, undo_text=f"{former_text} again")
        return next_attempt

    def _undo_change(self, last_change: _AppliedChange, attempt: Attempt) -> Attempt:
        """Return to the attempt before `last_change`, which had led to `attempt`. It is not offered again."""
        if last_change.change.strategy is not None:  # another strategy
            self.offer = replace(self.offer, may_choose=False)
        elif last_change.reduced_host is not None:  # one rank less on a slow host, which must not lose a rank again
            self._places.restore_rank(last_change.reduced_host)
            self.offer = replace(self.offer, kept_hosts=[*self.offer.kept_hosts, last_change.change.dropped_host])
        else:  # other hosts: the added ones are not used again
            self._places.exclude_hosts(attempt.hosts, last_change.before.hosts)
        return self._places.make_attempt(last_change.before.hosts, last_change.before.strategy)

    def give_up_change(self, reason: str) -> Attempt | None:
        """The next attempt if the run ended before the first step after a change; else None."""
        applied_change = self._pending
        # A forced change, for which the ranks had to leave their hosts, cannot be taken back.
        if applied_change is None or applied_change.change.is_forced:
            return None
        self._pending = None
        self.forget_last()
        change, reduced_host = applied_change.change, applied_change.reduced_host
        if reduced_host is not None and change.undoes:  # the change gave the rank back: the host loses it again
            self._places.drop_rank(reduced_host)
        elif reduced_host is not None:
            self._places.restore_rank(reduced_host)
        self._say(f"--adapt: {change.what}: the run ended before its first step ({reason}); continuing as before")
        return self._places.keep_hosts(applied_change.before)

    def forget_last(self) -> None:
        """The last change can no longer be undone."""
        self._last = None
        self.offer = replace(self.offer, step_seconds_before=0.0, undo_text="")
