"""How long a rank computes, and what memory it takes, between and beyond the sizes that were measured."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np

from matex_tf.planner.plan_file import EXTRAPOLATED, MEASURED, Input, Plan, Size, compute_typical_step

FAR = 2
"""So many times beyond what was measured is extrapolated."""
BUSY = 0.1
"""Where other processes took more of this machine's cores, measured sizes are not compared with each other."""
RARE, LONGER = 0.01, 1.3
"""Steps of a few dozen do not show what is rare; at worst so many are so much longer."""


def count_slice_rows(plan: Plan, ranks: int) -> int:
    """Rows of the largest slice on so many ranks; 0 where no step is sharded."""
    if not plan.rows:
        return 0
    return plan.rows if plan.scaling == "weak" else max(1, ceil(plan.rows / ranks))


def count_measured_rows(plan: Plan) -> int:
    """How many sizes of slices were measured: one does not tell what other rows take, as with weak scaling."""
    return len({size.rows for size in plan.sizes})


class Line:
    """Piecewise linear through points, and the nearest piece's slope beyond them; never below `least`."""

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
        # More rows never take less: what says so is noise, and would grow beyond the points.
        slope = max(y1 - y0, 0.0) / (x1 - x0) if not x0 <= at <= x1 else (y1 - y0) / (x1 - x0)
        return max(y0 + (at - x0) * slope if at >= x0 else y0 - (x0 - at) * slope, self.least)


class _Group:
    """The sizes that were measured in as many copies at once: with as many cores for each."""

    def __init__(self, sizes: Sequence[Size]):
        self.sizes = list(sizes)
        self.x = [float(size.rows) for size in sizes]
        self.seconds = Line(self.x, [size.typical for size in sizes], 1e-6)
        # One rank hands its gradients over at the end of its step: when they are there earlier only others tell.
        of_more = [size for size in sizes if size.ranks > 1] or self.sizes
        rows = [float(size.rows) for size in of_more]
        self.ready = [Line(rows, column) for column in zip(*(size.ready for size in of_more))]
        self.at = [Line(rows, column) for column in zip(*(size.at for size in of_more))]


class Compute:
    """The model of a plan's computation: t(rows) = a + c rows, by pieces; for ranks that fill a host, and for fewer."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self._full = min(max(size.copies for size in plan.sizes), plan.ranks_per_host)
        self._groups = {
            copies: _Group([size for size in plan.sizes if size.copies == copies])
            for copies in {size.copies for size in plan.sizes}
        }
        # How a step grows with rows, where a group has but one size, follows from that which has most.
        self._shape = max(self._groups.values(), key=lambda one: (len(one.seconds.x), one.sizes[0].copies)).seconds
        # Bytes depend on rows, not on cores. One rank alone may have other collectives.
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
        """Rows of a rank; without any, all ranks compute the same."""
        return float(count_slice_rows(self.plan, ranks))

    def _choose_group(self, ranks: int) -> _Group:
        """Fewer ranks than fill a host have more cores each."""
        return self._find_group(self.count_copies(ranks))

    def _find_group(self, copies: int) -> _Group:
        return self._groups[min(one for one in self._groups if one >= copies)]

    def count_copies(self, ranks: int) -> int:
        """How many of so many ranks share this host's cores."""
        return min(ranks, self._full)

    def estimate_seconds(self, ranks: int) -> float:
        """A step of a rank of so many, without sums, typically; no less than its input takes on all cores of the rank.

        Measured steps hold what their own input costs beyond that: input of the next batch runs beside the step, on
        cores that this leaves idle, else in turns with it.
        """
        group, found = self._choose_group(ranks), self.estimate_input(ranks)
        cores = self.plan.cores / group.sizes[0].copies
        return max(self._interpolate_line(ranks, group.seconds), found.seconds / cores if found else 0.0)

    def estimate_input(self, ranks: int) -> Input | None:
        """What a step's input costs a rank of so many: a + b * rows, by pieces; None where that was not measured.

        Of input that ranks share, `a` is what each does for all rows, as to order them. Of other input `b` is 0. With
        weak scaling all slices have as many rows, and a rank may work on the batches of all ranks: a + b * ranks.
        """
        at = float(ranks) if self.plan.scaling == "weak" else self._find_position(ranks)
        return Input(*(line(at) for line in self._input)) if self._input else None

    def estimate_whole_batch(self, ranks: int) -> float:
        """A step of which each of so many ranks on one host trains the whole batch by itself, typically."""
        return self._interpolate_line(ranks, self._choose_group(ranks).seconds, float(self.plan.rows))

    def estimate_alone(self, ranks: int) -> tuple[float, str]:
        """A step of one rank alone with as many cores as each of so many has, and what it stands on: for efficiency."""
        whole, group = self.plan.whole, self._choose_group(ranks)
        if ranks > 1 and whole is not None and whole.copies == group.sizes[0].copies:
            return whole.typical, MEASURED
        is_near = self.plan.rows <= max(group.x) * FAR
        return self.estimate_whole_batch(ranks), MEASURED if is_near else EXTRAPOLATED

    def estimate_update(self, ranks: int) -> float:
        """Seconds of a step in which a rank updates all weights; 0 where that was not measured."""
        return float(np.median([size.update for size in self._choose_group(ranks).sizes]))

    def estimate_ready_times(self, ranks: int) -> list[float]:
        """When each gradient is there."""
        end = self.estimate_seconds(ranks)
        return [min(self._interpolate_line(ranks, line), end) for line in self._choose_group(ranks).ready]

    def estimate_collective_times(self, ranks: int) -> list[float]:
        """When each collective begins."""
        return [self._interpolate_line(ranks, line) for line in self._choose_group(ranks).at]

    def estimate_collective_bytes(self, ranks: int) -> list[float]:
        """Bytes that a rank of so many has in each collective, on the mean over the ranks, of which some may be idle.

        They follow from its rows. Where one number of rows was measured, they grow with more rows at most as these do.
        """
        rows = self.plan.rows / (1 if self.plan.scaling == "weak" else ranks)
        grows = [max(rows / line.x[0], 1.0) if len(line.x) == 1 and line.x[0] else 1.0 for line in self._bytes]
        return [line(rows) * times for line, times in zip(self._bytes, grows)] or [
            float(one.bytes) for one in self.plan.collectives
        ]

    def find_busy_share(self, ranks: int) -> float:
        """The share of the cores that other processes took while such ranks were measured."""
        return max(size.busy for size in self._choose_group(ranks).sizes)

    def count_idle_cores(self, ranks: int, cores: int) -> float:
        """How many of the `cores` of such a rank its computation leaves idle, as one on a GPU does; 0 if unmeasured."""
        used = [cores if size.cores is None else size.cores for size in self._choose_group(ranks).sizes]
        return max(cores - max(used), 0.0)

    def _interpolate_line(self, ranks: int, line: Line, rows: float | None = None) -> float:
        """What `line` of these ranks' group says of their rows, or of `rows`."""
        return self._read_line(line, self._find_position(ranks) if rows is None else rows)

    def _read_line(self, line: Line, rows: float) -> float:
        grows = self._shape(rows) / self._shape(line.x[0]) if len(line.x) == 1 and rows != line.x[0] else 1.0
        return line(rows) * grows

    def split_seconds(self) -> tuple[float, float]:
        """Seconds of a step that no number of ranks lowers, and seconds of a row."""
        line = self._find_group(self._full).seconds
        none, most = self._read_line(line, 0.0), max(line.x[-1], self._shape.x[-1])
        return none, max(self._read_line(line, most) - none, 0.0) / most if most else 0.0

    def estimate_memory_of_rows(self, rows: float) -> float:
        """Bytes that a process takes at most."""
        return self._memory(rows)

    def find_mark(self, ranks: int) -> str:
        at, group = self._find_position(ranks), self._choose_group(ranks)
        is_alike = group.sizes[0].copies == self.count_copies(ranks)
        is_near = min(group.x) / FAR <= at <= max(group.x) * FAR
        return MEASURED if is_alike and is_near else EXTRAPOLATED

    def find_nearest(self, ranks: int) -> Size:
        """The measured size whose slices are most like those of so many ranks."""
        at = self._find_position(ranks)
        return min(self._choose_group(ranks).sizes, key=lambda size: abs(np.log((size.rows + 1) / (at + 1))))

    def compute_spread(self, ranks: int) -> list[float]:
        """Measured steps, by the typical one."""
        steps = self.find_nearest(ranks).steps
        return sorted(step / compute_typical_step(steps) for step in steps)

    def estimate_slowest(self, ranks: int) -> tuple[float, float]:
        """How much longer than a typical step the slowest of so many ranks takes: by the measured steps, and if rare
        ones, which so few do not show, are longer.
        """
        steps = self.compute_spread(ranks)
        seen = compute_expected_maximum(steps, [1.0] * len(steps), ranks)
        rare = [step * LONGER for step in steps]
        weights = [1 - RARE] * len(steps) + [RARE] * len(steps)
        return max(seen, 1.0), max(compute_expected_maximum(steps + rare, weights, ranks), 1.0)


def compute_expected_maximum(values: Sequence[float], weights: Sequence[float], draws: int) -> float:
    """The mean of the largest of `draws` values, each drawn by `weights`: resampling, without drawing."""
    order = np.argsort(values)
    shares = np.cumsum(np.array(weights)[order])
    below = (shares / shares[-1]) ** draws
    return float(np.sum(np.array(values)[order] * np.diff(below, prepend=0.0)))
