"""Proposes changes of the ranks or of the strategy, and compares their gain with the cost of a restart.

`leaving` asks for a proposal after each window, which is a number of consecutive steps that are measured together. A
proposal is one of: more ranks if `matex run` offers them, the run without one slow rank, another strategy, or the
reversal of the last change. Nothing here communicates: ranks with equal measurements choose the same change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from matex_tf.adapt.control import CONFIRMING_WINDOWS, MIN_GAIN
from matex_tf.adapt.offers import Change, Offer, describe_ranks

GAIN_PER_COST = 2.0
"""A change is worth it if it gains this many times its cost."""
SLOW_FACTOR = 3.0
"""A rank is slow if it needs for a row more than this many times the median time of the other ranks."""
SLOW_WINDOWS = 4 * CONFIRMING_WINDOWS
"""A rank that is slow in this many consecutive windows may be dropped. A rank that other programs slow down for a short
time is not dropped."""
JUDGED_WINDOWS = 2 * SLOW_WINDOWS
"""A change is judged after this many windows. Slice ratios settle in the first half, so only the second half counts."""


@dataclass(frozen=True)
class Slow:
    """A slow rank: the other ranks wait for it, although its slice is already the smallest that a rank may have."""

    rank: int
    gain: float  # the seconds by which a step is shorter without this rank
    factor: float  # its time for a row, divided by the median time of the other ranks


@dataclass
class Streak:
    """The rank that was slow in the last windows (None: no rank was), and the number of these consecutive windows."""

    rank: int | None = None
    windows: int = 0

    def confirm(self, slow: Slow | None) -> Slow | None:
        """Add the slow rank of a window. Returns it once it is the same in `SLOW_WINDOWS` consecutive windows."""
        rank = None if slow is None else slow.rank
        self.windows = self.windows + 1 if rank == self.rank else 1
        self.rank = rank
        return slow if self.windows >= SLOW_WINDOWS else None


@dataclass(frozen=True)
class Proposal:
    """A change, and the seconds by which it makes a step shorter."""

    change: Change
    gain: float

    def is_worth(self, steps_left: int, cost_seconds: float) -> bool:
        return self.gain * steps_left > GAIN_PER_COST * cost_seconds


def propose_change(
    offer: Offer, hosts: Sequence[str], rows: Sequence[int], seconds: Sequence[float], slow: Slow | None = None,
    other_strategy: tuple[str, float] = ("", 0.0), servers: int = 0,
) -> Proposal | None:  # fmt: skip
    """The possible change with the largest gain; None if no change gains anything.

    hosts: the host of each rank.
    rows: the rows of a batch that each training rank computes.
    seconds: the time that each training rank needs for its rows.
    slow: the rank that may be dropped; None if no rank may be dropped.
    other_strategy: another strategy with the same results, and the predicted gain for a step, in seconds; ("", 0.0)
        if there is none.
    servers: the number of further ranks that only serve.
    """
    size = len(rows) + servers
    proposals = []
    # First possible change: more ranks.
    if offer.ranks > size:
        # Equal parts of a step's work take sum(seconds) / len(seconds) now, and sum(seconds) / new ranks afterwards.
        gain = mean(seconds) * (1 - len(seconds) / (offer.ranks - servers))
        proposals.append(Proposal(Change(offer.ranks, describe_ranks(offer.ranks, size), _describe_gain(gain)), gain))
    # Second: the run without the slow rank. `kept_hosts`: a rank there was dropped before, and this was undone.
    host = "" if slow is None else hosts[slow.rank]
    if slow is not None and host not in offer.kept_hosts:
        why = (
            f"without rank {slow.rank} ({host}), which takes {slow.factor:.1f} times as long for a row as the others "
            f"and has {rows[slow.rank]} of {sum(rows)} rows, {_describe_gain(slow.gain)}"
        )
        change = Change(size - 1, describe_ranks(size - 1, size), why, dropped_host=host)
        proposals.append(Proposal(change, slow.gain))
    # Third: another strategy.
    strategy, gain = other_strategy
    if strategy and gain > MIN_GAIN * max(seconds):
        why = f"by the planner's model {_describe_gain(gain)}"
        proposals.append(Proposal(Change(size, f"the strategy {strategy}", why, strategy=strategy), gain))
    return max(proposals, key=lambda proposal: proposal.gain, default=None)


def propose_undoing(offer: Offer, size: int, step_seconds: float) -> Proposal | None:
    """The reversal of the last change, if a step has become longer by more than chance; else None.

    The last change can be undone if `offer.step_seconds_before`, the time of a step before it, is not 0.

    size: the present number of ranks.
    step_seconds: the time of a step now.
    """
    gain = step_seconds - offer.step_seconds_before
    if not offer.step_seconds_before or gain <= MIN_GAIN * step_seconds:
        return None
    why = f"a step takes {1e3 * step_seconds:.1f} ms, and took {1e3 * offer.step_seconds_before:.1f} ms before"
    return Proposal(Change(size, offer.undo_text, why, undoes=True), gain)


def _describe_gain(gain: float) -> str:
    return f"a step is to take {1e3 * gain:.1f} ms less"


def find_slow(rows: Sequence[int], seconds: Sequence[float], smallest: int) -> Slow | None:
    """The rank that others wait for although it has the smallest possible slice; None if there is none.

    rows, seconds: see `propose_change`.
    smallest: the rows of the smallest possible slice.
    """
    slowest = max(range(len(rows)), key=lambda rank: seconds[rank])
    other_ranks = [rank for rank in range(len(rows)) if rank != slowest]
    if not other_ranks or rows[slowest] > smallest:
        return None
    if min(seconds) <= 0 or any(rows[rank] <= 0 for rank in other_ranks):
        return None  # no speed is known
    # A rank without rows computes one row.
    row_seconds = [slice_seconds / max(row_count, 1) for slice_seconds, row_count in zip(seconds, rows)]
    factor = row_seconds[slowest] / median(row_seconds[rank] for rank in other_ranks)
    # Without this rank, the others compute all rows, each at its own speed.
    seconds_without = sum(rows) / sum(1 / row_seconds[rank] for rank in other_ranks)
    gain = seconds[slowest] - seconds_without
    return Slow(slowest, gain, factor) if factor > SLOW_FACTOR and gain > 0 else None
