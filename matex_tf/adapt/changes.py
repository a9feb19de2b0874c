"""With what a run could go on instead: other ranks, or another strategy; and whether that is worth a new start.

It only computes: ranks that see the same figures come to the same change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from matex_tf.adapt.control import GAIN
from matex_tf.adapt.offers import Change, Offer

WORTH = 2.0
"""A change is worth it that gains so many times what it costs."""
SLOWER = 3.0
"""Times that a rank takes longer for a row than others, where it may be dropped."""


@dataclass(frozen=True)
class Proposal:
    """A change, and by how many seconds a step is to be shorter."""

    change: Change
    gain: float

    def is_worth(self, left: int, seconds: float) -> bool:
        """Whether it is with so many steps `left`, where it takes so many `seconds`."""
        return self.gain * left > WORTH * seconds


def propose_change(
    offer: Offer, hosts: Sequence[str], rows: Sequence[int], seconds: Sequence[float], least: int,
    other: tuple[str, float] = ("", 0.0),
) -> Proposal | None:  # fmt: skip
    """What gains most of all that could be had; None where nothing gains anything.

    Args:
        hosts: of each rank its host.
        rows: those of a batch that each rank computes.
        seconds: what that takes each.
        least: the fewest rows that a rank may have.
        other: another strategy with the same result, and by how much a step is predicted to be shorter with it.
    """
    size = len(rows)
    found = []
    if offer.ranks > size:
        gain = predict_gain(seconds, offer.ranks)
        found.append(Proposal(Change(offer.ranks, describe_ranks(offer.ranks, size), _describe_gain(gain)), gain))
    slow = find_slow(rows, seconds, least)
    if slow is not None:
        rank, gain, times = slow
        why = (
            f"without rank {rank} ({hosts[rank]}), which takes {times:.1f} times as long for a row as the others and "
            f"has {rows[rank]} of {sum(rows)} rows, {_describe_gain(gain)}"
        )
        found.append(Proposal(Change(size - 1, describe_ranks(size - 1, size), why, without=hosts[rank]), gain))
    strategy, gain = other
    if strategy and gain > GAIN * max(seconds):
        why = f"by the planner's model {_describe_gain(gain)}"
        found.append(Proposal(Change(size, f"the strategy {strategy}", why, strategy=strategy), gain))
    return max(found, key=lambda one: one.gain, default=None)


def describe_ranks(ranks: int, size: int) -> str:
    return f"{ranks} rank{'' if ranks == 1 else 's'} in place of {size}"


def _describe_gain(gain: float) -> str:
    return f"a step is to take {1e3 * gain:.1f} ms less"


def predict_gain(seconds: Sequence[float], ranks: int) -> float:
    """By how much a step is shorter on so many ranks: what ranks compute is divided among all, the rest stays."""
    return mean(seconds) * (1 - len(seconds) / ranks)


def find_slow(rows: Sequence[int], seconds: Sequence[float], least: int) -> tuple[int, float, float] | None:
    """The rank for whose least part of a batch all others wait; what a step gains without it; its time for a row.

    That is in those of the others, which then compute its rows at the speed that they have.
    """
    slowest = max(range(len(rows)), key=lambda rank: seconds[rank])
    others = [rank for rank in range(len(rows)) if rank != slowest]
    if not others or rows[slowest] > least or any(rows[rank] <= 0 for rank in others) or min(seconds) <= 0:
        return None
    of_row = [took / max(part, 1) for took, part in zip(seconds, rows)]
    times = of_row[slowest] / median(of_row[rank] for rank in others)
    gain = seconds[slowest] - sum(rows) / sum(1 / of_row[rank] for rank in others)
    return (slowest, gain, times) if times > SLOWER and gain > 0 else None
