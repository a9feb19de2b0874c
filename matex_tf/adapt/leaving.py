"""Lets ranks leave a call of `fit`, so that `matex run` restarts them with a change (`--adapt=ranks`).

`executor` calls these functions at the end of a window of steps. A rank that leaves saves its state, writes the change
(`offers`), and exits at the next step at which that is possible (`Fit.ask_change`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from matex_tf import settings
from matex_tf.adapt import changes, offers
from matex_tf.adapt.changes import Proposal, Slow
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
    chosen = settings.get_settings()
    return fit_state.find_current() if chosen.adapt == "ranks" and chosen.proof else None


def read_offer() -> Offer | None:
    """The offer of `matex run`; None on all ranks of a host but the first, which reads it."""
    return offers.read_offer() if world.get_world().local_rank == 0 else None


def count_bytes(fit: Fit) -> tuple[int, int]:
    """The bytes of the variables that ranks could hold in pieces: of weights, and of the optimizer's own variables."""
    return update_costs.count_bytes(getattr(fit.model, "optimizer", None))


def leave_hosts(fit: Fit, offer: Offer) -> bool:
    """Leave if the ranks must; returns whether they do. Call it on all ranks with the same offer."""
    size = world.get_world().size
    if not offer.reason_to_leave or not fit.may_change():
        return False
    what = offers.describe_ranks(offer.ranks, size) if offer.ranks != size else f"{size} ranks on other hosts"
    _ask_change(fit, Change(offer.ranks, what, offer.reason_to_leave, is_forced=True))
    return True


def find_change(
    offer: Offer, sizes: tuple[int, int], rows: Sequence[int], seconds: Sequence[float], slow: Slow | None
) -> Proposal | None:
    """The change with the largest gain. Call it on all ranks with equal arguments.

    sizes: the result of `count_bytes` of one rank.
    rows, seconds, slow: see `changes.propose_change`.
    """
    strategy = owners.compare_strategies(*sizes) if offer.may_choose else ("", 0.0)  # name, gain in seconds; "": none
    here = world.get_world()
    return changes.propose_change(offer, here.hosts, rows, seconds, slow, strategy, here.servers)


def leave_if_worth(fit: Fit, offer: Offer, proposal: Proposal | None, steps_left: int, step_seconds: float) -> bool:
    """Leave if a change gains enough; returns whether the ranks leave. Call it on all ranks with equal arguments.

    steps_left: the number of steps to go.
    step_seconds: the time of a step now.
    """
    if proposal is None or not fit.may_change():
        return False
    change = proposal.change
    if proposal.is_worth(steps_left, offer.restart_seconds):
        _ask_change(fit, replace(change, step_seconds_before=step_seconds))
        return True
    if change.strategy is None and change.what not in _reported:
        _reported.add(change.what)
        notes.print_note(
            f"--adapt: {change.what} could be had, which would take {offer.restart_seconds:.1f} s; {steps_left} steps "
            f"are left, and {change.why}: it is not worth it"
        )
    return False


def _ask_change(fit: Fit, change: Change) -> None:
    """Let the ranks leave for `change`. After saving, `mark_change` adds position and time, and writes the change."""

    def mark_change(saved_at: str, start: float) -> None:
        offers.mark_change(replace(change, saved_at=saved_at, saving_seconds=time.monotonic() - start))

    fit.ask_change(f"{change.what}: {change.why}", mark_change)
