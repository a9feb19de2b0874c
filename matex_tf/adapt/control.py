"""Which shares the ranks are to have, by what their parts of batches have taken them.

It only computes: ranks that see the same figures come to the same shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from matex_tf.sharding import row_shares

GAIN = 0.05
"""Shares are changed where a step would take so much less."""
CONFIRMED = 2
"""So many windows in a row must ask for it, the same way: twice as many each time that a change is soon undone."""
MOST_CONFIRMED = 16
WINDOWS = 3
"""The median of so many counts, or of as many as must ask for it."""
SOON = 8
"""Windows."""
BACK = 3.0
"""A way back of up to so many times the last change undoes it; after a longer one the speeds are others."""
MOST = 2.0
"""Times the equal share, at most: a rank's memory was enough for that one."""
AT_ONCE = 2.0
"""A share grows or shrinks by such a factor at most in one change, or becomes equal again."""


@dataclass
class Control:
    """What has been measured since the last change.

    Args:
        size: how many ranks there are.
        parts: a batch is shared out in so many equal parts; 0: by rows.
    """

    size: int
    parts: int = 0
    shares: tuple[int, ...] = ()
    """Those in force; empty: equal ones."""
    _windows: list[list[float]] = field(default_factory=list)
    _age: int = 0
    """Windows since the last change."""
    _confirmed: int = CONFIRMED
    _last: list[float] = field(default_factory=list)
    """By how much each rank's share grew in the last change."""

    def choose_shares(self, rows: int, seconds: Sequence[float]) -> tuple[int, ...] | None:
        """The shares that batches of `rows` rows are to have now; None where they are to stay.

        Args:
            rows: of a batch of all ranks, shared out as `shares` has it.
            seconds: what its part of a batch takes each rank.
        """
        units = self.parts or rows
        if units < 2 * self.size or min(seconds) <= 0:
            return None
        self._windows = [*self._windows, list(seconds)][-max(WINDOWS, self._confirmed) :]
        self._age += 1
        now = row_shares.count_dealt_rows(rows, self.shares or (1,) * self.size)
        ways = [_compute_change(now, one) for one in self._windows[-self._confirmed :]]
        if len(ways) < self._confirmed or not all(ways) or any(_compute_dot(ways[-1], way) <= 0 for way in ways):
            return None
        typical = [median(of_rank) for of_rank in zip(*self._windows)]
        way = _compute_change(now, typical)
        if not way:
            return None
        last = self._last or [0.0] * self.size
        back = -_compute_dot(way, last)
        is_undone = self._age <= max(SOON, self._confirmed) and back > 0
        if is_undone and back <= BACK * _compute_dot(last, last):
            way = [step / 2 for step in way]  # one of the two was wrong
        shares = _round_to_units([part + step for part, step in zip(now, way)], units)
        after = row_shares.count_dealt_rows(rows, shares)
        if after == row_shares.count_dealt_rows(rows, (1,) * self.size):
            shares = (1,) * self.size
        if after == now:
            return None
        self._last = [new - old for new, old in zip(after, now)]
        if is_undone:
            self._confirmed = min(2 * self._confirmed, MOST_CONFIRMED)
        elif self._age > MOST_CONFIRMED:
            self._confirmed = CONFIRMED
        self.shares, self._windows, self._age = shares, [], 0
        return shares


def _compute_change(now: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """By how many rows each rank's part is to grow; empty where that gains too little.

    A rank that took `seconds` for its rows computes so many rows a second; rows in proportion would make all ranks take
    the same. Where a step also takes what does not depend on rows, that is a part of the way there, never more.
    """
    had = [max(rows, 1) for rows in now]  # without a row of its own a rank computes one all the same
    speeds = [rows / took for rows, took in zip(had, seconds)]
    even = sum(now) / len(now)
    least = [max(1.0, rows / AT_ONCE) for rows in had]
    most = [max(min(MOST * even, rows * AT_ONCE), even, low) for rows, low in zip(had, least)]
    wanted = divide_within_bounds(sum(now), speeds, least, most)
    takes = max(rows / speed for rows, speed in zip(wanted, speeds))
    if max(seconds) - takes <= GAIN * max(seconds):
        return []
    if even / min(speeds) <= takes * (1 + GAIN / 2) and all(a <= even <= b for a, b in zip(least, most)):
        wanted = [even] * len(now)  # which is nearly as good, and nothing of chance is in it
    return [new - old for new, old in zip(wanted, now)]


def _compute_dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b))


def divide_within_bounds(
    total: float, speeds: Sequence[float], least: Sequence[float], most: Sequence[float]
) -> list[float]:
    """Parts of `total` in proportion to `speeds`, but each within its bounds.

    Where those of all are too narrow for `total`, all are at the nearer end of theirs.
    """
    # What all have after a time grows with it: faster where a rank leaves its least, slower where one is at its most.
    corners = sorted(
        [(low / speed, speed) for speed, low in zip(speeds, least)]
        + [(high / speed, -speed) for speed, high in zip(speeds, most)]
    )
    time, have, growth = 0.0, sum(least), 0.0
    for corner, change in corners:
        grown = have + growth * (corner - time)
        if grown >= total:
            break
        time, have, growth = corner, grown, growth + change
    if growth > 0:
        time += (total - have) / growth
    return [min(max(time * speed, low), high) for speed, low, high in zip(speeds, least, most)]


def _round_to_units(wanted: Sequence[float], units: int) -> tuple[int, ...]:
    """Whole shares of `units` in proportion to what is wanted, one at least for each."""
    above = [max(part / sum(wanted) * units - 1, 0.0) for part in wanted]
    return tuple(
        1 + more for more in row_shares.count_dealt_rows(units - len(above), [round(1e6 * one) for one in above])
    )
