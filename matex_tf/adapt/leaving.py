"""Lets ranks leave a call of `fit`, so that `matex run` restarts them with a change (`--adapt=ranks`).

`slice_adapter` measures windows of consecutive steps, and asks a `Leaving` at the end of each. The ranks leave if
`matex run` offers a restart, and if a change is necessary or worth its cost (`changes`). A change is another number of
ranks, other hosts, or another strategy: allreduce, or variables held in pieces. A rank that leaves saves its state,
writes the change (`offers`), and exits at the next step at which that is possible (`Fit.ask_change`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from matex_tf import settings
from matex_tf.adapt import changes, offers
from matex_tf.adapt.offers import Change, Offer
from matex_tf.resilience import fit_state
from matex_tf.resilience.fit_state import Fit
from matex_tf.runtime import notes
from matex_tf.servers.pieces import owners, update_costs
from matex_tf.world import world

_reported: set[str] = set()
"""Changes that a message has called not worth it."""


def find_fit() -> Fit | None:
    """The call of `fit` that ranks may leave; None if no program would start them again, or if no state is kept."""
    # `proof`: the folder in which ranks and `matex run` exchange files; "": none.
    current_settings = settings.get_settings()
    return fit_state.find_current() if current_settings.adapt == "ranks" and current_settings.proof else None


@dataclass(frozen=True)
class Report:
    """What a rank tells the others about possible changes at the end of a window."""

    offer: Offer | None  # the offer of `matex run`, on the first rank of each host; None on the others
    steps_left: int  # the number of steps to go in this call of `fit`
    piece_bytes: tuple[int, int]
    """The bytes of the variables that ranks could hold in pieces: of weights, and of the optimizer's own variables."""


class Leaving:
    """Decides whether ranks leave. At the end of each window of a step, its caller makes the report of this rank,
    gathers the reports of all ranks, and calls `decide`. All ranks decide alike, by the reports and equal measurements.
    """

    def __init__(self) -> None:
        self._fit: Fit | None = None  # the call of `fit` that ranks may leave
        self._step_seconds: list[float] = []  # of each of the last windows of that call, on its slowest rank
        self._slow_streak = changes.Streak()  # counts the consecutive windows in which the same rank was slow
        # False in a resumed call, until the change before the restart is judged by the times of steps before and after.
        self._is_judged = True

    def make_report(self) -> Report | None:
        """The report of this rank at the end of a window; None if ranks cannot leave now."""
        fit = find_fit()
        if fit is not self._fit:  # another call of `fit`: begin the measurements again
            self._fit, self._step_seconds, self._slow_streak = fit, [], changes.Streak()
            self._is_judged = fit is None or not fit.resumption.is_resumed
        if fit is None:
            return None
        offer = offers.read_offer() if world.get_world().local_rank == 0 else None
        return Report(offer, fit.count_left(), update_costs.count_bytes(getattr(fit.model, "optimizer", None)))

    def begin_streak(self) -> None:
        """The slices of the ranks have changed: whether a rank is slow is judged by later windows."""
        self._slow_streak = changes.Streak()

    def decide(
        self, reports: Sequence[Report | None], step_seconds: float, slices: Sequence[int], seconds: Sequence[float],
        smallest: int,
    ) -> bool:  # fmt: skip
        """Leave if a change must be made, or gains enough. Returns whether the ranks leave.

        reports: of all ranks.
        step_seconds: the time of a step in this window, on the slowest rank.
        slices: the rows that each training rank computes; all 0 if there was no batch in this window.
        seconds: the time that each of them needs.
        smallest: the rows of the smallest possible slice.
        """
        self._step_seconds = [*self._step_seconds, step_seconds][-changes.JUDGED_WINDOWS :]
        # Take the offer from the first host that has read it: others may not see the folder of `matex run`.
        offer = next((report.offer for report in reports if report is not None and report.offer is not None), None)
        if offer is None or reports[0] is None or self._fit is None or not self._fit.may_change():
            return False
        own_world, steps_left = world.get_world(), reports[0].steps_left
        # First, leave hosts that must be left, whatever the times are.
        if offer.reason_to_leave:
            size = own_world.size
            ranks_text = f"{size} ranks on other hosts"
            if offer.ranks != size:
                ranks_text = offers.describe_ranks(offer.ranks, size)
            self._ask_change(Change(offer.ranks, ranks_text, offer.reason_to_leave, is_forced=True))
            return True
        # The slow rank, if it has been slow in enough windows; None: no rank may be dropped.
        slow = self._slow_streak.confirm(changes.find_slow(slices, seconds, smallest)) if sum(slices) else None
        # Second, undo the change before this start if steps have become longer. It is judged once, before further ones.
        if not self._is_judged and offer.step_seconds_before:
            if len(self._step_seconds) < changes.JUDGED_WINDOWS:
                return False
            self._is_judged = True
            undoing_proposal = changes.propose_undoing(offer, own_world.size, self._compute_recent_seconds())
            if self._leave_if_worth(offer, undoing_proposal, steps_left):
                return True
        # Third, leave for other ranks or another strategy.
        if not sum(slices) or len(self._step_seconds) < changes.SLOW_WINDOWS:
            return False  # too few measurements
        other_strategy = "", 0.0  # the strategy, and the seconds that it saves in a step
        if offer.may_choose:
            other_strategy = owners.compare_strategies(*reports[0].piece_bytes)
        proposal = changes.propose_change(
            offer, own_world.hosts, slices, seconds, slow, other_strategy, own_world.servers
        )
        return self._leave_if_worth(offer, proposal, steps_left)

    def _compute_recent_seconds(self) -> float:
        """The typical time of a step in the last windows."""
        return median(self._step_seconds[-changes.SLOW_WINDOWS :])

    def _leave_if_worth(self, offer: Offer, proposal: changes.Proposal | None, steps_left: int) -> bool:
        """Leave if a change gains enough; returns whether the ranks leave."""
        if proposal is None:
            return False
        change = proposal.change
        if proposal.is_worth(steps_left, offer.restart_seconds):
            self._ask_change(replace(change, step_seconds_before=self._compute_recent_seconds()))
            return True
        if change.strategy is None and change.what not in _reported:
            _reported.add(change.what)
            notes.print_note(
                f"--adapt: {change.what} could be had, which would take {offer.restart_seconds:.1f} s; {steps_left} "
                f"steps are left, and {change.why}: it is not worth it"
            )
        return False

    def _ask_change(self, change: Change) -> None:
        """Let the ranks leave for `change`. After saving, `mark_change` adds position and time, and writes it."""

        def mark_change(saved_at: str, saving_began_at: float) -> None:
            offers.mark_change(replace(change, saved_at=saved_at, saving_seconds=time.monotonic() - saving_began_at))

        assert self._fit is not None  # the call that ranks leave
        self._fit.ask_change(f"{change.what}: {change.why}", mark_change)
