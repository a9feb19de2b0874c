"""Model of a rank's computation time and memory, interpolated and extrapolated from measured sizes.

A size (`plan_file.Size`) is the measurement of a phantom rank, a process that runs the script as rank 0 of N ranks
without the others. It has a number of rows in the slice, and a number of concurrent copies that share the cores. For
each quantity, `Compute` has a piecewise linear function of rows (`Line`) through the sizes with equal numbers of
copies. For example, from 64 and 128 rows in 2 copies it interpolates 96 rows on hosts of 2 ranks.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from math import ceil

import numpy as np

from matex_tf.planner.plan_file import EXTRAPOLATED, MEASURED, Input, Plan, Size

FAR = 2
"""A prediction is extrapolated if its rows exceed this multiple of the measured rows."""
BUSY = 0.1
"""If other processes took a larger fraction of this machine's cores, measured sizes are not compared."""
RARE, LONGER = 0.01, 1.3
"""A few dozen steps do not show rare events. At worst, the fraction RARE of steps is assumed to take LONGER times."""


def count_slice_rows(plan: Plan, ranks: int) -> int:
    """Rows of the largest slice on `ranks` ranks; 0 if no step is sharded.

    With weak scaling the batch grows with the ranks, so each slice has the rows of the script's batch.
    """
    if not plan.rows:
        return 0
    return plan.rows if plan.scaling == "weak" else max(1, ceil(plan.rows / ranks))


def count_measured_rows(plan: Plan) -> int:
    """Number of measured slice sizes. With one size, as in weak scaling, the time of other sizes is unknown."""
    return len({size.rows for size in plan.sizes})


class Line:
    """A piecewise linear function through points. If one position has several values, it goes through their median.

    Outside of the points it continues with the slope of the nearest segment, or with slope 0 if that segment falls. Its
    values are at least `minimum`.
    """

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
        right = min(max(bisect.bisect_left(self.x, position), 1), len(self.x) - 1)
        (x0, x1), (y0, y1) = self.x[right - 1 : right + 1], self.y[right - 1 : right + 1]
        slope = (y1 - y0) / (x1 - x0)
        if not x0 <= position <= x1:
            slope = max(slope, 0.0)  # more rows never take less time: a negative slope is noise
        return max(y0 + (position - x0) * slope, self.minimum)


class _Group:
    """The sizes that were measured with the same number of concurrent copies, so with equally many cores for a copy."""

    def __init__(self, sizes: Sequence[Size]):
        self.sizes = list(sizes)
        self.x = [float(size.rows) for size in sizes]
        self.seconds = Line(self.x, [size.typical for size in sizes], 1e-6)  # above 0: other times are divided by it
        # Only sizes of several ranks show when gradients are ready: a single rank reports them at the end of its step.
        sizes_with_times = [size for size in sizes if size.ranks > 1] or self.sizes
        rows = [float(size.rows) for size in sizes_with_times]
        # A line for each gradient, and one for each collective.
        self.ready = [Line(rows, column) for column in zip(*(size.ready for size in sizes_with_times))]
        self.at = [Line(rows, column) for column in zip(*(size.at for size in sizes_with_times))]


class Compute:
    """The model of a plan's computation: t(rows) = a + b * rows, piecewise, for each number of ranks on a host."""

    def __init__(self, plan: Plan):
        self.plan = plan
        # A what-if may ask for more ranks on a host than copies were measured; they are taken to be as fast.
        self._full_host_copies = min(max(size.copies for size in plan.sizes), plan.ranks_per_host)
        self._groups = {
            copies: _Group([size for size in plan.sizes if size.copies == copies])
            for copies in {size.copies for size in plan.sizes}
        }
        # A group with a single number of rows depends on rows as the group with the most numbers of rows does.
        largest_group = max(self._groups.values(), key=lambda group: (len(group.seconds.x), group.sizes[0].copies))
        self._reference_line = largest_group.seconds
        # Bytes depend on rows, not on cores. A single rank may have other collectives, and then no bytes.
        sizes_with_bytes = [size for size in plan.sizes if size.bytes]
        rows = [float(size.rows) for size in sizes_with_bytes]
        self._bytes = [Line(rows, column) for column in zip(*(size.bytes for size in sizes_with_bytes))]
        # Lines of the seconds and of the bytes of input, over rows, or with weak scaling over ranks.
        inputs = [(float(size.ranks if plan.scaling == "weak" else size.rows), size.input) for size in plan.sizes]
        measured_inputs = [(x, cost.seconds, cost.bytes) for x, cost in inputs if cost is not None]
        x, *columns = zip(*measured_inputs) if measured_inputs else [()]  # without a measurement there are no columns
        self._input = [Line(x, column) for column in columns]
        self.estimate_memory_of_rows = Line(
            [float(size.rows) for size in plan.sizes], [float(size.peak_bytes) for size in plan.sizes]
        )
        """The peak bytes of a process with a number of rows."""

    def _choose_group(self, ranks: int) -> _Group:
        """The sizes with as many copies as `ranks` ranks on a host, or with the next larger number of copies."""
        return self._groups[min(copies for copies in self._groups if copies >= self.count_copies(ranks))]

    def count_copies(self, ranks: int) -> int:
        """The number of ranks on a host, of `ranks` in total: ranks that do not fill a host have more cores each."""
        return min(ranks, self._full_host_copies)

    def estimate_seconds(self, ranks: int) -> float:
        """Typical seconds of a step of one of `ranks` ranks, without sums.

        Measured steps include their input: the next batch is read and decoded on idle cores, or alternates with the
        step. So a step takes at least as long as its input on all cores of the rank.
        """
        group, input_cost = self._choose_group(ranks), self.estimate_input(ranks)
        cores = self.plan.cores / group.sizes[0].copies
        input_seconds = input_cost.seconds / cores if input_cost else 0.0
        return max(self._read_line(group.seconds, count_slice_rows(self.plan, ranks)), input_seconds)

    def estimate_input(self, ranks: int) -> Input | None:
        """The cost of a step's input for one of `ranks` ranks, a + b * rows, piecewise; None if it was not measured.

        For sharded input, `a` is the work of each rank for all rows, such as ordering them. For other input `b` is 0.
        With weak scaling all slices have equal sizes, and a rank may process the batches of all ranks: a + b * ranks.
        """
        position = ranks if self.plan.scaling == "weak" else count_slice_rows(self.plan, ranks)
        return Input(*(line(position) for line in self._input)) if self._input else None

    def estimate_whole_batch(self, ranks: int) -> float:
        """Typical seconds of a step in which each of `ranks` ranks on one host trains the whole batch by itself."""
        return self._read_line(self._choose_group(ranks).seconds, self.plan.rows)

    def estimate_alone(self, ranks: int) -> tuple[float, str]:
        """(seconds, mark) of a step of one rank alone, with as many cores as each of `ranks` ranks: the base of
        efficiency. The mark says whether the seconds are measured or extrapolated.
        """
        # `Plan.whole`: steps in which each rank of a full host trains a whole batch; None: not measured.
        whole_batch, group = self.plan.whole, self._choose_group(ranks)
        if ranks > 1 and whole_batch is not None and whole_batch.copies == group.sizes[0].copies:
            return whole_batch.typical, MEASURED
        is_near = self.plan.rows <= max(group.x) * FAR
        return self.estimate_whole_batch(ranks), MEASURED if is_near else EXTRAPOLATED

    def estimate_update(self, ranks: int) -> float:
        """Seconds of the optimizer's update of all weights, a part of a step; 0 if they were not measured."""
        return float(np.median([size.update for size in self._choose_group(ranks).sizes]))

    def estimate_ready_times(self, ranks: int) -> list[float]:
        """For each gradient, the time at which it is ready, at the latest the end of the computation."""
        return self._read_times(self._choose_group(ranks).ready, ranks)

    def estimate_collective_times(self, ranks: int) -> list[float]:
        """For each collective, the time at which it begins, at the latest the end of the computation."""
        return self._read_times(self._choose_group(ranks).at, ranks)

    def _read_times(self, lines: Sequence[Line], ranks: int) -> list[float]:
        # Each line is interpolated by itself, and may give a time after the end of the computation.
        end, rows = self.estimate_seconds(ranks), count_slice_rows(self.plan, ranks)
        return [min(self._read_line(line, rows), end) for line in lines]

    def estimate_collective_bytes(self, ranks: int) -> list[float]:
        """Bytes of a rank in each collective, averaged over `ranks` ranks, some of which may be idle.

        They depend on the rank's rows. If only one number of rows was measured, they are assumed to grow in proportion
        to rows above it, and not to shrink below it: they may be independent of rows.
        """
        if not self._bytes:
            return [float(collective.bytes) for collective in self.plan.collectives]
        rows = self.plan.rows / (1 if self.plan.scaling == "weak" else ranks)
        measured_rows = self._bytes[0].x
        growth = max(rows / measured_rows[0], 1.0) if len(measured_rows) == 1 and measured_rows[0] else 1.0
        return [line(rows) * growth for line in self._bytes]

    def find_busy_share(self, ranks: int) -> float:
        """The largest share of the cores that other processes used while the sizes for `ranks` ranks were measured."""
        return max(size.busy for size in self._choose_group(ranks).sizes)

    def count_idle_cores(self, ranks: int, cores: int) -> float:
        """The number of a rank's `cores` that its computation leaves idle, as with a GPU; 0 if not measured."""
        used_cores = [cores if size.cores is None else size.cores for size in self._choose_group(ranks).sizes]
        return max(cores - max(used_cores), 0.0)

    def _read_line(self, line: Line, rows: float) -> float:
        """The value of `line` at `rows`. A line of one point grows with rows in proportion to the reference line."""
        if len(line.x) > 1 or rows == line.x[0]:
            return line(rows)
        return line(rows) * (self._reference_line(rows) / self._reference_line(line.x[0]))

    def split_seconds(self) -> tuple[float, float]:
        """Seconds of a step that more ranks do not reduce, and seconds for each row."""
        line = self._choose_group(self._full_host_copies).seconds
        without_rows, max_rows = self._read_line(line, 0.0), max(line.x[-1], self._reference_line.x[-1])
        if not max_rows:
            return without_rows, 0.0
        return without_rows, max(self._read_line(line, max_rows) - without_rows, 0.0) / max_rows

    def find_mark(self, ranks: int) -> str:
        """The mark of the computation of one of `ranks` ranks: measured if its rows are near a measured size."""
        rows, group = count_slice_rows(self.plan, ranks), self._choose_group(ranks)
        has_same_copies = group.sizes[0].copies == self.count_copies(ranks)
        is_near = min(group.x) / FAR <= rows <= max(group.x) * FAR
        return MEASURED if has_same_copies and is_near else EXTRAPOLATED

    def compute_spread(self, ranks: int) -> list[float]:
        """The steps of the size with the most similar slices, divided by its typical step, sorted."""
        rows = count_slice_rows(self.plan, ranks)
        nearest_size = min(self._choose_group(ranks).sizes, key=lambda size: abs(np.log((size.rows + 1) / (rows + 1))))
        return sorted(step / nearest_size.typical for step in nearest_size.steps)

    def estimate_slowest(self, ranks: int) -> tuple[float, float]:
        """The step of the slowest of `ranks` ranks over a typical step: (as measured, with rare longer steps).

        Measured steps do not show rare steps (`RARE`, `LONGER`).
        """
        steps = self.compute_spread(ranks)
        measured_maximum = compute_expected_maximum(steps, [1.0] * len(steps), ranks)
        rare_steps = [step * LONGER for step in steps]
        weights = [1 - RARE] * len(steps) + [RARE] * len(steps)
        return max(measured_maximum, 1.0), max(compute_expected_maximum(steps + rare_steps, weights, ranks), 1.0)


def compute_expected_maximum(values: Sequence[float], weights: Sequence[float], draws: int) -> float:
    """The expected maximum of `draws` independent draws of `values` with probabilities in proportion to `weights`.

    The maximum is at most v_k with probability F(v_k) ** draws, where F is the distribution of one draw.
    """
    order = np.argsort(values)
    cumulated_weights = np.cumsum(np.array(weights)[order])
    maximum_distribution = (cumulated_weights / cumulated_weights[-1]) ** draws
    return float(np.sum(np.array(values)[order] * np.diff(maximum_distribution, prepend=0.0)))
