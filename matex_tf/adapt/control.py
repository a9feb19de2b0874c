"""Computes slice ratios from the times that the ranks needed for their slices.

With the ratios (2, 1), rank 0 computes two thirds of a batch's rows. `slice_adapter` calls `Control.choose_ratios`
after each window, some 10 or more steps. The controller is slow on purpose: consecutive windows must agree, a small
gain changes nothing, and after a change that is soon undone, more windows must agree.
Nothing here communicates: ranks with equal measurements choose equal ratios.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from matex_tf.sharding import slice_bounds

MIN_GAIN = 0.05
"""Ratios change if a step becomes shorter by more than this fraction."""
CONFIRMING_WINDOWS = 2
"""This many consecutive windows must ask for a change in the same direction."""
MAX_CONFIRMING_WINDOWS = 16
"""Each change that was soon undone doubles the number of confirming windows, up to this limit."""
MEDIAN_WINDOWS = 3
"""The length of the median of times: this many windows, or the number of confirming windows if that is larger."""
UNDOING_WINDOWS = 8
"""A change in the opposite direction within this many windows undoes the last change."""
MAX_UNDOING_FACTOR = 3.0
"""An undoing change of at most this many times the size is halved. A larger one means that speeds have changed."""
MAX_OVER_EQUAL = 2.0
"""The largest slice over the equal slice: memory is known to be enough for the equal slice only."""
MAX_FACTOR = 2.0
"""The largest factor by which a slice changes at once, except for the return to equal slices."""


@dataclass
class Control:
    """The slice ratios of one step, and the measurements since their last change.

    size: the number of ranks.
    units: a slice is a multiple of 1/units of a batch; 0: a multiple of a row.
    """

    size: int
    units: int = 0
    ratios: tuple[int, ...] = ()  # the current ratios; empty: equal ones
    _windows: list[list[float]] = field(default_factory=list)  # the seconds of each rank in each of the last windows
    _windows_since_change: int = 0
    _confirming: int = CONFIRMING_WINDOWS  # the number of consecutive windows that must ask for a change
    _last_growth: list[float] = field(default_factory=list)  # rows by which each slice grew in the last change

    def compute_smallest(self, rows: int) -> int:
        """The rows of the smallest possible slice of `rows` rows: one row, or one unit, which may be rounded up."""
        return -(-rows // self.units) if self.units else 1

    def choose_ratios(self, rows: int, seconds: Sequence[float]) -> tuple[int, ...] | None:
        """Add a window. Returns the ratios from now on; None if they stay.

        rows: of the batch of all ranks, which the current ratios have divided.
        seconds: the time that each rank needed for its slice.
        """
        units = self.units or rows
        if units < 2 * self.size or min(seconds) <= 0:  # too few units to divide, or a rank without a measured time
            return None
        self._windows = [*self._windows, list(seconds)][-max(MEDIAN_WINDOWS, self._confirming) :]
        self._windows_since_change += 1
        equal_ratios = (1,) * self.size
        slices = slice_bounds.count_dealt_rows(rows, self.ratios or equal_ratios)
        if not self._is_confirmed(slices):
            return None
        typical_seconds = [median(rank_seconds) for rank_seconds in zip(*self._windows)]
        growth = _compute_growth(slices, typical_seconds)
        if not growth:
            return None
        # Does this change undo the last one? Changes are vectors, with the rows of each rank. Their dot product is
        # negative if they are opposite.
        last_growth = self._last_growth or [0.0] * self.size
        opposition = -_compute_dot(growth, last_growth)
        is_soon = self._windows_since_change <= max(UNDOING_WINDOWS, self._confirming)
        is_undoing = is_soon and opposition > 0
        if is_undoing and opposition <= MAX_UNDOING_FACTOR * _compute_dot(last_growth, last_growth):
            growth = [part / 2 for part in growth]  # one of the two changes was wrong: meet in the middle
        # Round the new slices to units. If these slices are equal, make the ratios equal, for batches of all sizes.
        ratios = _round_to_units([old + more for old, more in zip(slices, growth)], units)
        new_slices = slice_bounds.count_dealt_rows(rows, ratios)
        if new_slices == slices:
            return None
        if new_slices == slice_bounds.count_dealt_rows(rows, equal_ratios):
            ratios = equal_ratios
        # After a change that was undone, more windows must confirm the next one; after a long time, two again.
        self._last_growth = [new - old for new, old in zip(new_slices, slices)]
        if is_undoing:
            self._confirming = min(2 * self._confirming, MAX_CONFIRMING_WINDOWS)
        elif self._windows_since_change > MAX_CONFIRMING_WINDOWS:
            self._confirming = CONFIRMING_WINDOWS
        self.ratios, self._windows, self._windows_since_change = ratios, [], 0
        return ratios

    def _is_confirmed(self, slices: Sequence[int]) -> bool:
        """Whether the last windows all ask for a change of `slices`, in the same direction."""
        growths = [_compute_growth(slices, seconds) for seconds in self._windows[-self._confirming :]]
        if len(growths) < self._confirming or not all(growths):
            return False
        return all(_compute_dot(growths[-1], growth) > 0 for growth in growths)


def _compute_growth(slices: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """The number of rows by which each rank's slice should grow; empty if that gains too little.

    A rank that needed `seconds` for its slice computes slice / seconds rows a second. With slices in the proportion of
    these speeds, all ranks need the same time. Work that does not depend on rows makes this change too small, never too
    large.
    """
    computed_rows = [max(rows, 1) for rows in slices]  # a rank without rows computes one row
    speeds = [rows / rank_seconds for rows, rank_seconds in zip(computed_rows, seconds)]
    equal_rows = sum(slices) / len(slices)
    min_rows = [max(1.0, rows / MAX_FACTOR) for rows in computed_rows]
    # A slice may always return to the equal one.
    max_rows = [
        max(min(MAX_OVER_EQUAL * equal_rows, rows * MAX_FACTOR), equal_rows, low)
        for rows, low in zip(computed_rows, min_rows)
    ]
    wanted_rows = divide_within_bounds(sum(slices), speeds, min_rows, max_rows)
    new_seconds = max(rows / speed for rows, speed in zip(wanted_rows, speeds))
    if max(seconds) - new_seconds <= MIN_GAIN * max(seconds):
        return []
    # Prefer equal slices if they are almost as fast and within the bounds: they do not depend on measurements.
    is_equal_as_good = equal_rows / min(speeds) <= new_seconds * (1 + MIN_GAIN / 2)
    if is_equal_as_good and all(low <= equal_rows <= high for low, high in zip(min_rows, max_rows)):
        wanted_rows = [equal_rows] * len(slices)
    return [new - old for new, old in zip(wanted_rows, slices)]


def _compute_dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b))


def divide_within_bounds(
    total: float, speeds: Sequence[float], least: Sequence[float], most: Sequence[float]
) -> list[float]:
    """Parts of `total` in proportion to `speeds`, each within its bounds `least` and `most`.

    Example: 12 by the speeds 2 and 1 is 8 and 4; if the first part may be 6 at most, it is 6 and 6. If all bounds are
    too narrow for `total`, all parts are at their minimum, or all at their maximum.
    """
    # Each part is time * speed within its bounds. The sum of the parts is piecewise linear in the time: its slope grows
    # by `speed` when a rank leaves its minimum, and falls by `speed` when it reaches its maximum. Find the time at
    # which the sum is `total`.
    corners = sorted(
        [(low / speed, speed) for speed, low in zip(speeds, least)]
        + [(high / speed, -speed) for speed, high in zip(speeds, most)]
    )
    time, reached_total, slope = 0.0, sum(least), 0.0
    for corner_time, slope_change in corners:
        total_at_corner = reached_total + slope * (corner_time - time)
        if total_at_corner >= total:
            break
        time, reached_total, slope = corner_time, total_at_corner, slope + slope_change
    if slope > 0:
        time += (total - reached_total) / slope
    return [min(max(time * speed, low), high) for speed, low, high in zip(speeds, least, most)]


def _round_to_units(wanted_parts: Sequence[float], units: int) -> tuple[int, ...]:
    """Integer parts of `units` in proportion to `wanted_parts`, each at least one.

    Each part gets one unit. The other units are dealt in proportion to what is wanted above one.
    """
    above_one = [max(part / sum(wanted_parts) * units - 1, 0.0) for part in wanted_parts]
    weights = [round(1e6 * part) for part in above_one]  # `count_dealt_rows` takes integers
    return tuple(1 + more for more in slice_bounds.count_dealt_rows(units - len(wanted_parts), weights))
