"""Model of a rank's computation time and memory, interpolated and extrapolated from measured sizes.

A size is a measurement of a phantom rank (`plan_file.Size`): a slice with some rows, in some concurrent copies.
`Compute` makes a line over the rows of the sizes with equal numbers of copies, for each quantity.
"""

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
    """Piecewise linear interpolation; outside the points, with the slope of the nearest segment; at least `minimum`."""

    def __init__(self, x: Sequence[float], y: Sequence[float], minimum: float = 0.0):
        points: dict[float, list[float]] = {}
        for position, value in zip(x, y):
            points.setdefault(position, []).append(value)
        self.x = sorted(points)
        self.y = [float(np.median(points[position])) for position in self.x]
        self.minimum = minimum

    def __call__(self, position: float) -> float:
        if len(self.x) == 1:
            return self.y[0]
        right = min(max(int(np.searchsorted(self.x, position)), 1), len(self.x) - 1)
        (x0, x1), (y0, y1) = self.x[right - 1 : right + 1], self.y[right - 1 : right + 1]
        slope = (y1 - y0) / (x1 - x0)
        if not x0 <= position <= x1:
            # More rows never take less time: a negative slope is noise, and extrapolation would amplify it.
            slope = max(slope, 0.0)
        return max(y0 + (position - x0) * slope, self.minimum)


class _Group:
    """The sizes measured with the same number of concurrent copies, and so with the same number of cores for each."""

    def __init__(self, sizes: Sequence[Size]):
        self.sizes = list(sizes)
        self.x = [float(size.rows) for size in sizes]
        self.seconds = Line(self.x, [size.typical for size in sizes], 1e-6)
        # Only sizes of several ranks show when gradients are ready: a single rank hands them over at its step's end.
        with_times = [size for size in sizes if size.ranks > 1] or self.sizes
        rows = [float(size.rows) for size in with_times]
        self.ready = [Line(rows, column) for column in zip(*(size.ready for size in with_times))]
        self.at = [Line(rows, column) for column in zip(*(size.at for size in with_times))]


class Compute:
    """The model of a plan's computation: t(rows) = a + c * rows, piecewise; for full hosts, and for fewer ranks."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self._full_host_copies = min(max(size.copies for size in plan.sizes), plan.ranks_per_host)
        self._groups = {
            copies: _Group([size for size in plan.sizes if size.copies == copies])
            for copies in {size.copies for size in plan.sizes}
        }
        # A group with a single size takes its dependence on rows from the group with the most sizes.
        largest_group = max(self._groups.values(), key=lambda group: (len(group.seconds.x), group.sizes[0].copies))
        self._reference_line = largest_group.seconds
        # Bytes depend on rows, not on cores. A single rank may have other collectives.
        with_bytes = [size for size in plan.sizes if size.bytes]
        rows = [float(size.rows) for size in with_bytes]
        self._bytes = [Line(rows, column) for column in zip(*(size.bytes for size in with_bytes))]
        # Lines of the seconds and of the bytes of input, over rows, or with weak scaling over ranks.
        inputs = [(float(size.ranks if plan.scaling == "weak" else size.rows), size.input) for size in plan.sizes]
        measured = [(x, cost.seconds, cost.bytes) for x, cost in inputs if cost is not None]
        x, *costs = zip(*measured) if measured else [()]
        self._input = [Line(x, column) for column in costs]
        self._memory = Line([float(size.rows) for size in plan.sizes], [float(size.peak_bytes) for size in plan.sizes])

    def _find_position(self, ranks: int) -> float:
        """Rows of a rank; 0 if all ranks compute the same."""
        return float(count_slice_rows(self.plan, ranks))

    def _choose_group(self, ranks: int) -> _Group:
        """Ranks that do not fill a host have more cores each."""
        return self._find_group(self.count_copies(ranks))

    def _find_group(self, copies: int) -> _Group:
        return self._groups[min(count for count in self._groups if count >= copies)]

    def count_copies(self, ranks: int) -> int:
        """How many of `ranks` ranks share this host's cores."""
        return min(ranks, self._full_host_copies)

    def estimate_seconds(self, ranks: int) -> float:
        """Typical seconds of a step of one of `ranks` ranks, without sums; at least the time of its input on its cores.

        Measured steps include any further cost of their input: input of the next batch runs concurrently on idle cores,
        or alternates with the step.
        """
        group, cost = self._choose_group(ranks), self.estimate_input(ranks)
        cores = self.plan.cores / group.sizes[0].copies
        return max(self._interpolate_line(ranks, group.seconds), cost.seconds / cores if cost else 0.0)

    def estimate_input(self, ranks: int) -> Input | None:
        """The cost of a step's input for one of `ranks` ranks, a + b * rows, piecewise; None if it was not measured.

        For sharded input, `a` is the work of each rank for all rows, such as ordering them. For other input `b` is 0.
        With weak scaling all slices have equal sizes, and a rank may process the batches of all ranks: a + b * ranks.
        """
        x = float(ranks) if self.plan.scaling == "weak" else self._find_position(ranks)
        return Input(*(line(x) for line in self._input)) if self._input else None

    def estimate_whole_batch(self, ranks: int) -> float:
        """Typical seconds of a step in which each of `ranks` ranks on one host trains the whole batch by itself."""
        return self._interpolate_line(ranks, self._choose_group(ranks).seconds, float(self.plan.rows))

    def estimate_alone(self, ranks: int) -> tuple[float, str]:
        """Seconds of a step of one rank alone, with as many cores as each of `ranks` ranks has, and their mark.

        It is the base of efficiency.
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
            float(collective.bytes) for collective in self.plan.collectives
        ]

    def find_busy_share(self, ranks: int) -> float:
        """The share of the cores that other processes used while such ranks were measured."""
        return max(size.busy for size in self._choose_group(ranks).sizes)

    def count_idle_cores(self, ranks: int, cores: int) -> float:
        """The number of a rank's `cores` that its computation leaves idle, as with a GPU; 0 if not measured."""
        used = [cores if size.cores is None else size.cores for size in self._choose_group(ranks).sizes]
        return max(cores - max(used), 0.0)

    def _interpolate_line(self, ranks: int, line: Line, rows: float | None = None) -> float:
        """The value of `line` in these ranks' group at their rows, or at `rows`."""
        return self._read_line(line, self._find_position(ranks) if rows is None else rows)

    def _read_line(self, line: Line, rows: float) -> float:
        """The value of `line` at `rows`; a line of one point grows with rows as the reference line does."""
        if len(line.x) > 1 or rows == line.x[0]:
            return line(rows)
        return line(rows) * (self._reference_line(rows) / self._reference_line(line.x[0]))

    def split_seconds(self) -> tuple[float, float]:
        """Seconds of a step that more ranks do not reduce, and seconds for each row."""
        line = self._find_group(self._full_host_copies).seconds
        without_rows, max_rows = self._read_line(line, 0.0), max(line.x[-1], self._reference_line.x[-1])
        if not max_rows:
            return without_rows, 0.0
        return without_rows, max(self._read_line(line, max_rows) - without_rows, 0.0) / max_rows

    def estimate_memory_of_rows(self, rows: float) -> float:
        """Peak memory of a process in bytes."""
        return self._memory(rows)

    def find_mark(self, ranks: int) -> str:
        """Whether the computation of one of `ranks` ranks is measured, or far from measured sizes."""
        rows, group = self._find_position(ranks), self._choose_group(ranks)
        has_same_copies = group.sizes[0].copies == self.count_copies(ranks)
        is_near = min(group.x) / FAR <= rows <= max(group.x) * FAR
        return MEASURED if has_same_copies and is_near else EXTRAPOLATED

    def find_nearest(self, ranks: int) -> Size:
        """The measured size whose slices are most similar to those of `ranks` ranks."""
        rows = self._find_position(ranks)
        return min(self._choose_group(ranks).sizes, key=lambda size: abs(np.log((size.rows + 1) / (rows + 1))))

    def compute_spread(self, ranks: int) -> list[float]:
        """Measured steps divided by the typical step, sorted."""
        steps = self.find_nearest(ranks).steps
        return sorted(step / compute_typical_step(steps) for step in steps)

    def estimate_slowest(self, ranks: int) -> tuple[float, float]:
        """The slowest of `ranks` ranks relative to a typical step: as measured, and with rare longer steps.

        A few measured steps do not show the rare ones (`RARE`, `LONGER`).
        """
        steps = self.compute_spread(ranks)
        measured = compute_expected_maximum(steps, [1.0] * len(steps), ranks)
        rare_steps = [step * LONGER for step in steps]
        weights = [1 - RARE] * len(steps) + [RARE] * len(steps)
        return max(measured, 1.0), max(compute_expected_maximum(steps + rare_steps, weights, ranks), 1.0)


def compute_expected_maximum(values: Sequence[float], weights: Sequence[float], draws: int) -> float:
    """The expected maximum of `draws` values, each drawn with the probabilities `weights`: exact resampling."""
    order = np.argsort(values)
    shares = np.cumsum(np.array(weights)[order])
    below = (shares / shares[-1]) ** draws
    return float(np.sum(np.array(values)[order] * np.diff(below, prepend=0.0)))
