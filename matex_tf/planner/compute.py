"""Model of a rank's computation time and memory, interpolated and extrapolated from measured sizes."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np

from matex_tf.planner.plan_file import EXTRAPOLATED, MEASURED, Input, Plan, Size, compute_typical_step

FAR = 2
"""Predictions beyond this multiple of the measured sizes count as extrapolated."""
BUSY = 0.1
"""If other processes took a larger share of this machine's cores, measured sizes are not compared with each other."""
RARE, LONGER = 0.01, 1.3
"""A few dozen steps do not show rare events. In the worst case this share of steps takes this multiple of the time."""


def count_slice_rows(plan: Plan, ranks: int) -> int:
    """Rows of the largest slice on `ranks` ranks; 0 if no step is sharded."""
    if not plan.rows:
        return 0
    return plan.rows if plan.scaling == "weak" else max(1, ceil(plan.rows / ranks))


def count_measured_rows(plan: Plan) -> int:
    """Number of measured slice sizes. With one size, as in weak scaling, the time of other sizes is unknown."""
    return len({size.rows for size in plan.sizes})


class Line:
    """Piecewise linear interpolation; outside the points, with the slope of the nearest segment;
    never below `least`.
    """

    def __init__(self, x: Sequence[float], y: Sequence[float], least: float = 0.0):
        points: dict[float, list[float]] = {}
        for at, value in zip(x, y):
            points.setdefault(at, []).append(value)
        self.x = sorted(points)
        self.y = [float(np.median(points[at])) for at in self.x]
        self.least = least

    def __call__(self, at: float) -> float:
        if len(self.x) == 1:
            return self.y[0]
        right = min(max(int(np.searchsorted(self.x, at)), 1), len(self.x) - 1)
        (x0, x1), (y0, y1) = self.x[right - 1 : right + 1], self.y[right - 1 : right + 1]
        # More rows never take less time: a negative slope is noise, and extrapolation would amplify it.
        slope = max(y1 - y0, 0.0) / (x1 - x0) if not x0 <= at <= x1 else (y1 - y0) / (x1 - x0)
        return max(y0 + (at - x0) * slope if at >= x0 else y0 - (x0 - at) * slope, self.least)


class _Group:
    """The sizes measured with the same number of concurrent copies, and so with the same number of cores for each."""

    def __init__(self, sizes: Sequence[Size]):
        self.sizes = list(sizes)
        self.x = [float(size.rows) for size in sizes]
        self.seconds = Line(self.x, [size.typical for size in sizes], 1e-6)
        # A single rank hands over all gradients at the end of its step; only several ranks show when gradients are
        # ready.
        of_more = [size for size in sizes if size.ranks > 1] or self.sizes
        rows = [float(size.rows) for size in of_more]
        self.ready = [Line(rows, column) for column in zip(*(size.ready for size in of_more))]
        self.at = [Line(rows, column) for column in zip(*(size.at for size in of_more))]


class Compute:
    """The model of a plan's computation: t(rows) = a + c * rows, piecewise; for full hosts, and for fewer ranks."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self._full = min(max(size.copies for size in plan.sizes), plan.ranks_per_host)
        self._groups = {
            copies: _Group([size for size in plan.sizes if size.copies == copies])
            for copies in {size.copies for size in plan.sizes}
        }
        # A group with a single size takes its dependence on rows from the group with the most sizes.
        self._shape = max(self._groups.values(), key=lambda one: (len(one.seconds.x), one.sizes[0].copies)).seconds
        # Bytes depend on rows, not on cores. A single rank may have other collectives.
        told = [size for size in plan.sizes if size.bytes]
        self._bytes = [
            Line([float(size.rows) for size in told], column) for column in zip(*(one.bytes for one in told))
        ]
        known = [(float(size.ranks if plan.scaling == "weak" else size.rows), size.input) for size in plan.sizes]
        of_input = [(x, one.seconds, one.bytes) for x, one in known if one is not None]
        x, *costs = zip(*of_input) if of_input else [()]
        self._input = [Line(x, column) for column in costs]
        self._memory = Line([float(size.rows) for size in plan.sizes], [float(size.peak_bytes) for size in plan.sizes])

    def _find_position(self, ranks: int) -> float:
        """Rows of a rank; 0 if all ranks compute the same."""
        return float(count_slice_rows(self.plan, ranks))

    def _choose_group(self, ranks: int) -> _Group:
        """Ranks that do not fill a host have more cores each."""
        return self._find_group(self.count_copies(ranks))

    def _find_group(self, copies: int) -> _Group:
        return self._groups[min(one for one in self._groups if one >= copies)]

    def count_copies(self, ranks: int) -> int:
        """How many of `ranks` ranks share this host's cores."""
        return min(ranks, self._full)

    def estimate_seconds(self, ranks: int) -> float:
        """Typical seconds of a step of one of `ranks` ranks, without sums; at least the time of its input on all its
        cores.

        Measured steps include any further cost of their input: input of the next batch runs concurrently on idle cores,
        or alternates with the step.
        """
        group, found = self._choose_group(ranks), self.estimate_input(ranks)
        cores = self.plan.cores / group.sizes[0].copies
        return max(self._interpolate_line(ranks, group.seconds), found.seconds / cores if found else 0.0)

    def estimate_input(self, ranks: int) -> Input | None:
        """The cost of a step's input for one of `ranks` ranks, a + b * rows, piecewise; None if it was not measured.

        For sharded input, `a` is the work of each rank for all rows, such as ordering them. For other input `b` is 0.
        With weak scaling all slices have equal sizes, and a rank may process the batches of all ranks: a + b * ranks.
        """
        at = float(ranks) if self.plan.scaling == "weak" else self._find_position(ranks)
        return Input(*(line(at) for line in self._input)) if self._input else None

    def estimate_whole_batch(self, ranks: int) -> float:
        """Typical seconds of a step in which each of `ranks` ranks on one host trains the whole batch by itself."""
        return self._interpolate_line(ranks, self._choose_group(ranks).seconds, float(self.plan.rows))

    def estimate_alone(self, ranks: int) -> tuple[float, str]:
        """Seconds of a step of one rank alone, with as many cores as each of `ranks` ranks has, and their mark; the
        base of efficiency.
        """
        whole, group = self.plan.whole, self._choose_group(ranks)
        if ranks > 1 and whole is not None and whole.copies == group.sizes[0].copies:
            return whole.typical, MEASURED
        is_near = self.plan.rows <= max(group.x) * FAR
        return self.estimate_whole_batch(ranks), MEASURED if is_near else EXTRAPOLATED

    def estimate_update(self, ranks: int) -> float:
        """Seconds of a step in which a rank updates all weights; 0 if they were not measured."""
        return float(np.median([size.update for size in self._choose_group(ranks).sizes]))

    def estimate_ready_times(self, ranks: int) -> list[float]:
        """For each gradient, the time at which it is ready."""
        end = self.estimate_seconds(ranks)
        return [min(self._interpolate_line(ranks, line), end) for line in self._choose_group(ranks).ready]

    def estimate_collective_times(self, ranks: int) -> list[float]:
        """For each collective, the time at which it begins."""
        return [self._interpolate_line(ranks, line) for line in self._choose_group(ranks).at]

    def estimate_collective_bytes(self, ranks: int) -> list[float]:
        """Bytes of a rank in each collective, averaged over `ranks` ranks, some of which may be idle.

        They depend on the rank's rows. If only one number of rows was measured, they grow at most in proportion to the
        rows.
        """
        rows = self.plan.rows / (1 if self.plan.scaling == "weak" else ranks)
        grows = [max(rows / line.x[0], 1.0) if len(line.x) == 1 and line.x[0] else 1.0 for line in self._bytes]
        return [line(rows) * times for line, times in zip(self._bytes, grows)] or [
            float(one.bytes) for one in self.plan.collectives
        ]

    def find_busy_share(self, ranks: int) -> float:
        """The share of the cores that other processes used while such ranks were measured."""
        return max(size.busy for size in self._choose_group(ranks).sizes)

    def count_idle_cores(self, ranks: int, cores: int) -> float:
        """The number of a rank's `cores` that its computation leaves idle, for example with a GPU;
        0 if not measured.
        """
        used = [cores if size.cores is None else size.cores for size in self._choose_group(ranks).sizes]
        return max(cores - max(used), 0.0)

    def _interpolate_line(self, ranks: int, line: Line, rows: float | None = None) -> float:
        """The value of `line` in these ranks' group at their rows, or at `rows`."""
        return self._read_line(line, self._find_position(ranks) if rows is None else rows)

    def _read_line(self, line: Line, rows: float) -> float:
        grows = self._shape(rows) / self._shape(line.x[0]) if len(line.x) == 1 and rows != line.x[0] else 1.0
        return line(rows) * grows

    def split_seconds(self) -> tuple[float, float]:
        """Seconds of a step that more ranks do not reduce, and seconds for each row."""
        line = self._find_group(self._full).seconds
        none, most = self._read_line(line, 0.0), max(line.x[-1], self._shape.x[-1])
        return none, max(self._read_line(line, most) - none, 0.0) / most if most else 0.0

    def estimate_memory_of_rows(self, rows: float) -> float:
        """Peak memory of a process in bytes."""
        return self._memory(rows)

    def find_mark(self, ranks: int) -> str:
        at, group = self._find_position(ranks), self._choose_group(ranks)
        is_alike = group.sizes[0].copies == self.count_copies(ranks)
        is_near = min(group.x) / FAR <= at <= max(group.x) * FAR
        return MEASURED if is_alike and is_near else EXTRAPOLATED

    def find_nearest(self, ranks: int) -> Size:
        """The measured size whose slices are most similar to those of `ranks` ranks."""
        at = self._find_position(ranks)
        return min(self._choose_group(ranks).sizes, key=lambda size: abs(np.log((size.rows + 1) / (at + 1))))

    def compute_spread(self, ranks: int) -> list[float]:
        """Measured steps divided by the typical step, sorted."""
        steps = self.find_nearest(ranks).steps
        return sorted(step / compute_typical_step(steps) for step in steps)

    def estimate_slowest(self, ranks: int) -> tuple[float, float]:
        """The slowest of `ranks` ranks relative to a typical step: from the measured steps, and if rare longer steps,
        which a few measured steps do not show, are included.
        """
        steps = self.compute_spread(ranks)
        seen = compute_expected_maximum(steps, [1.0] * len(steps), ranks)
        rare = [step * LONGER for step in steps]
        weights = [1 - RARE] * len(steps) + [RARE] * len(steps)
        return max(seen, 1.0), max(compute_expected_maximum(steps + rare, weights, ranks), 1.0)


def compute_expected_maximum(values: Sequence[float], weights: Sequence[float], draws: int) -> float:
    """The expected maximum of `draws` values, each drawn with the probabilities `weights`: exact resampling."""
    order = np.argsort(values)
    shares = np.cumsum(np.array(weights)[order])
    below = (shares / shares[-1]) ** draws
    return float(np.sum(np.array(values)[order] * np.diff(below, prepend=0.0)))
