"""Computes slice ratios from the times that the ranks needed for their slices.

Nothing here communicates: ranks with equal measurements choose equal ratios.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from matex_tf.sharding import slice_bounds

GAIN = 0.05
"""Ratios change if a step becomes shorter by this part."""
CONFIRMED = 2
"""This many consecutive windows must ask for the same direction: twice as many after each change
that was soon undone.
"""
MOST_CONFIRMED = 16
WINDOWS = 3
"""The length of the median: this many windows, or as many as must ask for the change."""
SOON = 8
"""In windows."""
BACK = 3.0
"""A change back of up to this many times the last change undoes it; a larger one means that speeds have changed."""
MOST = 2.0
"""Times the equal slice, at most: the rank's memory was enough for the equal slice."""
AT_ONCE = 2.0
"""The largest factor by which a ratio changes at once, except for the return to equal ratios."""


@dataclass
class Control:
    """The measurements since the last change.

    Args:
        size: the number of ranks.
        parts: a batch is divided into so many equal units; 0: by rows.
    """

    size: int
    parts: int = 0
    ratios: tuple[int, ...] = ()
    """The current ratios; empty: equal ones."""
    _windows: list[list[float]] = field(default_factory=list)
    _age: int = 0
    """Windows since the last change."""
    _confirmed: int = CONFIRMED
    _last: list[float] = field(default_factory=list)
    """The growth of each rank's ratio in the last change."""

    def choose_shares(self, rows: int, seconds: Sequence[float]) -> tuple[int, ...] | None:
        """The ratios for batches of `rows` rows from now on; None if they stay.

        Args:
            rows: of a batch of all ranks, divided by the current ratios.
            seconds: the time that each rank needed for its slice.
        """
        units = self.parts or rows
        if units < 2 * self.size or min(seconds) <= 0:
            return None
        self._windows = [*self._windows, list(seconds)][-max(WINDOWS, self._confirmed) :]
        self._age += 1
        now = slice_bounds.count_dealt_rows(rows, self.ratios or (1,) * self.size)
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
            way = [step / 2 for step in way]  # one of the two changes was wrong
        ratios = _round_to_units([part + step for part, step in zip(now, way)], units)
        after = slice_bounds.count_dealt_rows(rows, ratios)
        if after == slice_bounds.count_dealt_rows(rows, (1,) * self.size):
            ratios = (1,) * self.size
        if after == now:
            return None
        self._last = [new - old for new, old in zip(after, now)]
        if is_undone:
            self._confirmed = min(2 * self._confirmed, MOST_CONFIRMED)
        elif self._age > MOST_CONFIRMED:
            self._confirmed = CONFIRMED
        self.ratios, self._windows, self._age = ratios, [], 0
        return ratios


def _compute_change(now: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """The number of rows by which each rank's slice should grow; empty if that gains too little.

    A rank that needed `seconds` for its rows computes rows / seconds a second; slices in that proportion make all ranks
    need the same time. If a step also has work that does not depend on rows, the change is too small, and never too
    large.
    """
    had = [max(rows, 1) for rows in now]  # a rank without rows computes one row
    speeds = [rows / took for rows, took in zip(had, seconds)]
    even = sum(now) / len(now)
    least = [max(1.0, rows / AT_ONCE) for rows in had]
    most = [max(min(MOST * even, rows * AT_ONCE), even, low) for rows, low in zip(had, least)]
    wanted = divide_within_bounds(sum(now), speeds, least, most)
    takes = max(rows / speed for rows, speed in zip(wanted, speeds))
    if max(seconds) - takes <= GAIN * max(seconds):
        return []
    if even / min(speeds) <= takes * (1 + GAIN / 2) and all(a <= even <= b for a, b in zip(least, most)):
        wanted = [even] * len(now)  # nearly as good, and without chance
    return [new - old for new, old in zip(wanted, now)]


def _compute_dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b))


def divide_within_bounds(
    total: float, speeds: Sequence[float], least: Sequence[float], most: Sequence[float]
) -> list[float]:
    """Parts of `total` in proportion to `speeds`, each within its bounds.

    If all bounds are too narrow for `total`, all parts are at the nearer end of theirs.
    """
    # The sum of the parts after a time grows with it: faster once a rank leaves its minimum, slower once it has its
    # maximum.
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
    """Integer parts of `units` in proportion to the wanted ones, each at least one."""
    above = [max(part / sum(wanted) * units - 1, 0.0) for part in wanted]
    return tuple(
        1 + more for more in slice_bounds.count_dealt_rows(units - len(above), [round(1e6 * one) for one in above])
    )
