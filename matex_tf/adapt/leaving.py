"""Ranks that leave a call of `fit`, for `matex run` to start them again with a change: offers and requests."""

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

_said: set[str] = set()


def find_fit() -> Fit | None:
    """The call of `fit` that ranks may leave; None if no program would start them again, or if no state is kept."""
    chosen = settings.get_settings()
    return fit_state.find_current() if chosen.adapt == "ranks" and chosen.proof else None


def read_offer() -> Offer | None:
    """The offer of `matex run`, on the rank of its host that reads offers."""
    return offers.read_offer() if world.get_world().local_rank == 0 else None


def count_bytes(fit: Fit) -> tuple[int, int]:
    """The bytes of the trained variables that ranks could hold in pieces: of weights, and of slots."""
    return update_costs.count_bytes(getattr(fit.model, "optimizer", None))


def leave_hosts(fit: Fit, offer: Offer) -> bool:
    """Whether the ranks must leave. Collective in effect: call it on all ranks, with the same offer."""
    size = world.get_world().size
    if not offer.must or not fit.may_change():
        return False
    what = offers.describe_ranks(offer.ranks, size) if offer.ranks != size else f"{size} ranks on other hosts"
    _ask_change(fit, Change(offer.ranks, what, offer.must, must=True))
    return True


def find_change(
    offer: Offer, sizes: tuple[int, int], rows: Sequence[int], seconds: Sequence[float], slow: Slow | None
) -> Proposal | None:
    """The change with the largest gain. Call it on all ranks with equal arguments.

    Args:
        sizes: the result of `count_bytes` of one rank.
        rows, seconds, slow: see `changes.propose_change`.
    """
    other = owners.compare_strategies(*sizes) if offer.may_choose else ("", 0.0)
    here = world.get_world()
    return changes.propose_change(offer, here.hosts, rows, seconds, slow, other, here.servers)


def leave_if_worth(fit: Fit, offer: Offer, found: Proposal | None, left: int, took: float) -> bool:
    """Whether the ranks leave because a change pays. Call it on all ranks with equal arguments.

    Args:
        left: the number of steps to go.
        took: the time of a step, in seconds.
    """
    if found is None or not fit.may_change():
        return False
    if found.is_worth(left, offer.seconds):
        _ask_change(fit, replace(found.change, took=took))
        return True
    if found.change.strategy is None and found.change.what not in _said:
        _said.add(found.change.what)
        notes.print_note(
            f"--adapt: {found.change.what} could be had, which would take {offer.seconds:.1f} s; {left} steps are "
            f"left, and {found.change.why}: it is not worth it"
        )
    return False


def _ask_change(fit: Fit, change: Change) -> None:
    fit.ask_change(
        f"{change.what}: {change.why}",
        lambda where, since: offers.mark_change(replace(change, where=where, seconds=time.monotonic() - since)),
    )
