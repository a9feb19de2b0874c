"""With what a run could go on instead: other ranks, or another strategy; and whether that is worth a new start.

It only computes: ranks that see the same figures come to the same change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from matex_tf.adapt.control import CONFIRMED, GAIN
from matex_tf.adapt.offers import Change, Offer, describe_ranks

WORTH = 2.0
"""A change is worth it that gains so many times what it costs."""
SLOWER = 3.0
"""Times that a rank takes longer for a row than others, where it may be dropped."""
SLOW_WINDOWS = 4 * CONFIRMED
"""In so many windows in a row, as it is for good: 0.25 s each or more, so that short work of others drops no rank."""
JUDGED_WINDOWS = 2 * SLOW_WINDOWS
"""After so many a change is judged, by the second half of them: shares, which begin equal, have the first to settle."""


@dataclass(frozen=True)
class Slow:
    """A rank that others wait for; what a step gains without it; its time for a row, in times that of the others."""

    rank: int
    gain: float
    times: float


@dataclass
class Streak:
    """Which rank was found slow in the last windows, and in how many in a row."""

    rank: int | None = None
    windows: int = 0

    def confirm(self, found: Slow | None) -> Slow | None:
        """What was found in a window, once it is the same rank in `SLOW_WINDOWS` in a row."""
        rank = None if found is None else found.rank
        self.windows = self.windows + 1 if rank == self.rank else 1
        self.rank = rank
        return found if self.windows >= SLOW_WINDOWS else None


@dataclass(frozen=True)
class Proposal:
    """A change, and by how many seconds a step is to be shorter."""

    change: Change
    gain: float

    def is_worth(self, left: int, seconds: float) -> bool:
        """Whether it is with so many steps `left`, where it takes so many `seconds`."""
        return self.gain * left > WORTH * seconds


def propose_change(
    offer: Offer, hosts: Sequence[str], rows: Sequence[int], seconds: Sequence[float], slow: Slow | None = None,
    other: tuple[str, float] = ("", 0.0), servers: int = 0,
) -> Proposal | None:  # fmt: skip
    """What gains most of all that could be had; None where nothing gains anything.

    Args:
        hosts: of each rank its host.
        rows: those of a batch that each rank computes that trains.
        seconds: what that takes each.
        slow: the rank that may be dropped.
        other: another strategy with the same result, and by how much a step is predicted to be shorter with it.
        servers: how many ranks more there are, that only serve.
    """
    size = len(rows) + servers
    found = []
    if offer.ranks > size:
        gain = predict_gain(seconds, offer.ranks - servers)
        found.append(Proposal(Change(offer.ranks, describe_ranks(offer.ranks, size), _describe_gain(gain)), gain))
    if slow is not None and (host := hosts[slow.rank]) not in offer.keep:
        why = (
            f"without rank {slow.rank} ({host}), which takes {slow.times:.1f} times as long for a row as the others "
            f"and has {rows[slow.rank]} of {sum(rows)} rows, {_describe_gain(slow.gain)}"
        )
        found.append(Proposal(Change(size - 1, describe_ranks(size - 1, size), why, without=host), slow.gain))
    strategy, gain = other
    if strategy and gain > GAIN * max(seconds):
        why = f"by the planner's model {_describe_gain(gain)}"
        found.append(Proposal(Change(size, f"the strategy {strategy}", why, strategy=strategy), gain))
    return max(found, key=lambda one: one.gain, default=None)


def propose_undoing(offer: Offer, size: int, took: float) -> Proposal | None:
    """The last change undone, where a step of the `size` ranks takes longer since, by more than chance.

    Args:
        took: what it takes, in seconds.
    """
    gain = took - offer.took
    if not offer.took or gain <= GAIN * took:
        return None
    why = f"a step takes {1e3 * took:.1f} ms, and took {1e3 * offer.took:.1f} ms before"
    return Proposal(Change(size, offer.undone, why, undoes=True), gain)


def _describe_gain(gain: float) -> str:
    return f"a step is to take {1e3 * gain:.1f} ms less"


def predict_gain(seconds: Sequence[float], ranks: int) -> float:
    """By how much a step is shorter if so many ranks train: what ranks compute is divided among all, the rest stays."""
    return mean(seconds) * (1 - len(seconds) / ranks)


def find_slow(rows: Sequence[int], seconds: Sequence[float], least: int) -> Slow | None:
    """The rank for whose least part of a batch all others wait; without it they compute its rows at their own speed."""
    slowest = max(range(len(rows)), key=lambda rank: seconds[rank])
    others = [rank for rank in range(len(rows)) if rank != slowest]
    if not others or rows[slowest] > least or any(rows[rank] <= 0 for rank in others) or min(seconds) <= 0:
        return None
    of_row = [took / max(part, 1) for took, part in zip(seconds, rows)]
    times = of_row[slowest] / median(of_row[rank] for rank in others)
    gain = seconds[slowest] - sum(rows) / sum(1 / of_row[rank] for rank in others)
    return Slow(slowest, gain, times) if times > SLOWER and gain > 0 else None
