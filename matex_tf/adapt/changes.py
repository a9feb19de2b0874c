"""Alternatives to the current ranks and strategy, and whether one is worth a restart.

Nothing here communicates: ranks with equal measurements choose the same change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from matex_tf.adapt.control import CONFIRMED, GAIN
from matex_tf.adapt.offers import Change, Offer, describe_ranks

WORTH = 2.0
"""A change is worth it if it gains this many times its cost."""
SLOWER = 3.0
"""A rank may be dropped if it needs this many times the others' time for a row."""
SLOW_WINDOWS = 4 * CONFIRMED
"""In this many consecutive windows, of 0.25 s or more each, so that short work of other programs drops no rank."""
JUDGED_WINDOWS = 2 * SLOW_WINDOWS
"""Number of windows after which a change is judged, by their second half: slice ratios settle in the first."""


@dataclass(frozen=True)
class Slow:
    """A rank that others wait for; the gain for a step without it; its time for a row, over the others'."""

    rank: int
    gain: float
    times: float


@dataclass
class Streak:
    """The rank that was slow in the last windows, and the number of consecutive windows."""

    rank: int | None = None
    windows: int = 0

    def confirm(self, found: Slow | None) -> Slow | None:
        """The rank of this window, once it is the same in `SLOW_WINDOWS` consecutive windows."""
        rank = None if found is None else found.rank
        self.windows = self.windows + 1 if rank == self.rank else 1
        self.rank = rank
        return found if self.windows >= SLOW_WINDOWS else None


@dataclass(frozen=True)
class Proposal:
    """A change, and the seconds that it takes from a step."""

    change: Change
    gain: float

    def is_worth(self, left: int, seconds: float) -> bool:
        """Whether it pays with `left` steps to go, if it costs so many `seconds`."""
        return self.gain * left > WORTH * seconds


def propose_change(
    offer: Offer, hosts: Sequence[str], rows: Sequence[int], seconds: Sequence[float], slow: Slow | None = None,
    other: tuple[str, float] = ("", 0.0), servers: int = 0,
) -> Proposal | None:  # fmt: skip
    """The possible change with the largest gain; None if no change gains anything.

    Args:
        hosts: the host of each rank.
        rows: the rows of a batch that each training rank computes.
        seconds: the time that each of them needs.
        slow: the rank that may be dropped.
        other: another strategy with the same results, and the predicted gain for a step.
        servers: the number of further ranks that only serve.
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
    """The reversal of the last change, if a step of the `size` ranks has become longer, by more than chance.

    Args:
        took: the time of a step, in seconds.
    """
    gain = took - offer.took
    if not offer.took or gain <= GAIN * took:
        return None
    why = f"a step takes {1e3 * took:.1f} ms, and took {1e3 * offer.took:.1f} ms before"
    return Proposal(Change(size, offer.undone, why, undoes=True), gain)


def _describe_gain(gain: float) -> str:
    return f"a step is to take {1e3 * gain:.1f} ms less"


def predict_gain(seconds: Sequence[float], ranks: int) -> float:
    """The gain for a step if so many ranks train: computation is divided among all, the rest stays."""
    return mean(seconds) * (1 - len(seconds) / ranks)


def find_slow(rows: Sequence[int], seconds: Sequence[float], least: int) -> Slow | None:
    """The rank for whose smallest possible slice all others wait. Without it they compute its rows
    at their own speed.
    """
    slowest = max(range(len(rows)), key=lambda rank: seconds[rank])
    others = [rank for rank in range(len(rows)) if rank != slowest]
    if not others or rows[slowest] > least or any(rows[rank] <= 0 for rank in others) or min(seconds) <= 0:
        return None
    of_row = [took / max(part, 1) for took, part in zip(seconds, rows)]
    times = of_row[slowest] / median(of_row[rank] for rank in others)
    gain = seconds[slowest] - sum(rows) / sum(1 / of_row[rank] for rank in others)
    return Slow(slowest, gain, times) if times > SLOWER and gain > 0 else None
