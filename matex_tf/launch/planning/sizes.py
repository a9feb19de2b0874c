"""Measures how long a script's step takes with slices of several sizes, for the forecast of `matex plan`.

A phantom rank is one process that runs the script as rank 0 of N ranks, without the others. A size is the slice (the
rows of a batch) of such a rank. Size N is 1/N of the batch, so a larger N means a smaller slice: with batches of 64
rows, size 1 has 64 rows and size 4 has 16. (With weak scaling, the slices of all sizes have the rows of a batch.)

The ranks of a host share its cores and memory. So as many copies of a phantom rank run at once as a host has ranks
(`PlanRequest.copies`); size 1, which has a single rank, is measured alone. The smallest slice comes first. A larger
slice is started only if the memory of the smaller ones predicts that it fits. `planning.run` makes the plan from the
measurements; it estimates other sizes by a line through them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from math import ceil

from matex_tf import memory, settings
from matex_tf.launch.planning.requests import PlanRequest
from matex_tf.planner.compute import Line
from matex_tf.planner.measurement import phantoms, started
from matex_tf.planner.measurement.phantoms import Measurement, NotMeasured
from matex_tf.planner.plan_file import Gradient, Size
from matex_tf.planner.report import describe_kinds

MAX_DEVIATION = 0.05  # of its time: if the middle size is farther from the line, one more size is measured
MIN_ROWS_RATIO = 2  # least ratio of the rows of two sizes: if it is smaller, they do not show how memory grows
ADVICE = (
    "Give the script more data or epochs (some 10 steps), or plan with fewer --ranks, fewer --ranks-per-host, or "
    "MATEX_MICROBATCH=auto where memory ends"
)


def choose_sizes(ranks: Sequence[int], copies: int) -> list[int]:
    """The numbers of ranks to measure: 1, for comparison, and three numbers of at least `copies`, which fill a host.

    They are chosen from `copies` and `ranks`, the requested numbers: the smallest, the largest, and the one nearest to
    the middle. Some may be equal. Example: `ranks` 2, 8, 16 and 64, with 4 copies, give 1, 4, 16 and 64.
    """
    full_hosts = sorted(count for count in {copies, *ranks} if count >= copies)
    # The middle is the geometric mean, the square root of smallest * largest: of 4 and 64 ranks it is 16.
    middle_count = min(full_hosts, key=lambda count: abs(count * count - full_hosts[0] * full_hosts[-1]))
    return sorted({1, full_hosts[0], middle_count, full_hosts[-1]})


class Sizes:
    """The measurements of a script, and the reasons for missing ones. `measure_all` makes them.

    `ranks` names a size in all methods: rank 0 of so many ranks. `copies` is the number of copies that run at once.
    """

    def __init__(self, script: Sequence[str], request: PlanRequest):
        self.script, self.request = script, request
        self.rank_counts = choose_sizes(request.ranks, request.copies)  # the sizes to measure, ascending
        # Keyed by (ranks, simultaneous copies). `result.size` has the times and memory of a measurement `result`,
        # `result.steps` the rows of the batch and what the steps reduce.
        self.measurements: dict[tuple[int, int], Measurement] = {}
        self.failures: dict[int, str] = {}  # reasons of sizes that were not measured, keyed by ranks
        self._took_too_long = False  # a slice was too slow, so larger slices are not tried

    def measure_all(self) -> None:
        """Measure the chosen sizes from the smallest slice to the largest, and one more if they are not on a line.

        Raises:
            NotMeasured: the script fails before it trains, or fewer than two sizes can be measured.
        """
        for ranks in reversed(self.rank_counts):
            self.measure_size(ranks)
        if extra_size := self._find_extra_size():
            self.measure_size(extra_size)
        self.check_enough()

    def measure_size(self, ranks: int) -> None:
        """Measure as many copies at once as a host has ranks of this size, if they fit the memory.

        1. Before the first size, a single copy is measured in order to know its memory.
        2. The memory of the copies is estimated from all measurements so far (`estimate_peak`). A single measured
           slice gives only an upper bound.
        3. If the copies may not fit by this bound, a slice between the measured one and this one is measured, if there
           is one that fits by the bound. Memory is then known for two numbers of rows, and the line through them
           replaces the bound.
        4. The copies are measured if they fit now. Otherwise the size is extrapolated from the others.

        Raises:
            NotMeasured: the script fails before it trains, with any slice.
        """
        copies = min(self.request.copies, ranks)
        if self._took_too_long:
            self._extrapolate(ranks, "a smaller slice took too long already")
            return
        if copies > 1 and not self.measurements:
            self._try_size(ranks, 1)
            if not self.measurements:
                return
        misfit = self._explain_misfit(ranks, copies)
        if misfit and (smaller_size := self._find_smaller(ranks, copies)):
            self._try_size(smaller_size, copies)
            misfit = self._explain_misfit(ranks, copies)
        if misfit:
            self._extrapolate(ranks, misfit)
        else:
            self._try_size(ranks, copies)

    def measure_whole(self) -> Size | None:
        """Measure whole batches on all ranks of a host at once, as with MATEX_STRATEGY=async; None if that fails."""
        copies = self.request.copies
        try:
            misfit = self._explain_misfit(1, copies)
            return None if misfit else self._measure_copies(1, copies).size
        except NotMeasured as error:
            print(f"matex: async is estimated from rank 0 of 1: {error}", file=sys.stderr, flush=True)
            return None

    def leave_out_unlike(self) -> Measurement:
        """Remove unusual sizes: their step sums other tensors over ranks than the step of most sizes of full hosts.

        Their times do not belong on the line through the other sizes. Size 1 always remains.

        Returns the remaining measurement of a full host with the most ranks. Raises NotMeasured if too few remain.
        """
        full_host_results = self._list_full_hosts()
        candidates = [result for result in full_host_results if result.size.ranks > 1] or full_host_results
        # A form is what a step reduces (`describe_form`). Of equally common forms, most_common returns the one that it
        # saw first: here the form of the most ranks, because the candidates are reversed.
        common_form = Counter(result.steps.form for result in reversed(candidates)).most_common(1)[0][0]
        for (ranks, copies), result in list(self.measurements.items()):
            if ranks > 1 and result.steps.form != common_form:
                del self.measurements[ranks, copies]
                own_text, common_text = describe_form(*result.steps.form), describe_form(*common_form)
                self._extrapolate(ranks, f"its step reduces otherwise than most: {own_text}; most reduce {common_text}")
        self.check_enough()
        return next(result for result in reversed(candidates) if result.steps.form == common_form)

    def check_enough(self) -> None:
        """Raises NotMeasured if the measurements do not determine the cost on other ranks.

        They do if some size has all copies of a host, and two sizes are measured, because a line needs two points. One
        size is enough if only one was to be measured.
        """
        is_full = bool(self._list_full_hosts())
        if is_full and len({ranks for ranks, _ in self.measurements}) >= min(2, len(self.rank_counts)):
            return
        shortage = "fewer than two sizes"
        if not is_full:
            shortage = f"no size with {self.request.copies} at once, as ranks on a host,"
        reasons = "".join(f"\nrank 0 of {ranks}: {reason}" for ranks, reason in sorted(self.failures.items()))
        raise NotMeasured(
            f"{shortage} could be measured, which does not tell what other ranks take.{reasons}\n{ADVICE}"
        )

    def _try_size(self, ranks: int, copies: int) -> None:
        """Measure, or record the failure. Raises NotMeasured if every other slice would fail, too.

        Every slice would fail if nothing is measured yet, and either the script made no update of weights
        (`error.updates`), or it ended after too few steps (`is_short`) with strong scaling, in which the number of
        steps does not depend on the ranks. After a slice that was too slow (`is_late`), no larger one is tried.
        """
        try:
            self.measurements[ranks, copies] = self._measure_copies(ranks, copies)
        except NotMeasured as error:
            is_short = error.is_short and self.request.scaling == "strong"
            if not self.measurements and (is_short or not error.updates):
                raise
            self._took_too_long |= error.is_late
            self._extrapolate(ranks, str(error))

    def _extrapolate(self, ranks: int, reason: str) -> None:
        """Print and record that this size is not measured: the predictor will extrapolate it from the others."""
        print(f"matex: rank 0 of {ranks} is extrapolated: {reason}", file=sys.stderr, flush=True)
        self.failures[ranks] = reason.splitlines()[0]

    def _measure_copies(self, ranks: int, copies: int) -> Measurement:
        copies_text = f"{copies} at once" if copies > 1 else "alone"
        print(f"matex: measuring rank 0 of {ranks}, {copies_text} ...", file=sys.stderr, flush=True)
        request = self.request
        limits = phantoms.make_limits(choose_memory(request), settings.get_settings().microbatch)
        with started.make_place() as folder:
            return phantoms.measure_copies(self.script, ranks, copies, folder, request.steps, request.scaling, limits)

    def _explain_misfit(self, ranks: int, copies: int) -> str:
        """The reason not to start so many copies at once; "" if they fit, or nothing is known yet."""
        microbatch, memory_limit = settings.get_settings().microbatch, choose_memory(self.request)
        if not self.measurements or (microbatch == settings.AUTO and not memory_limit):
            # MATEX_MICROBATCH=auto: a process computes its slice in parts that fit its memory. Without a limit, this is
            # the free memory of the host, so any slice fits.
            return ""
        rows = self._count_rows(ranks)
        if microbatch > 0:
            rows = min(rows, microbatch)  # a slice is computed in parts of so many rows
        needed_bytes = estimate_peak(self._list_sizes(), rows) * memory.MARGIN
        if microbatch == settings.AUTO:
            needed_bytes = min(needed_bytes, memory_limit)  # the parts fit the limit
        free_bytes = memory.measure_free(copies)
        if needed_bytes <= free_bytes:
            return ""
        subject, unit = (f"{copies} at once", "GiB each") if copies > 1 else ("it", "GiB")
        needed_gib, free_gib = needed_bytes / 2**30, free_bytes / 2**30
        return f"{subject} may take {needed_gib:.2f} {unit}, and this host leaves {free_gib:.2f} {unit}"

    def _find_smaller(self, ranks: int, copies: int) -> int:
        """A size between size `ranks`, which has more rows, and the only measured slice, which has fewer.

        Its copies fit by the upper bound of `estimate_peak`. 0: there is none.
        """
        known_size = self._list_sizes()[-1]
        # Another slice would tell nothing: all slices have as many rows (weak scaling), no step is sharded (0 rows), or
        # memory is known for two numbers of rows already.
        if self.request.scaling == "weak" or not known_size.rows or len({size.rows for size in self._list_sizes()}) > 1:
            return 0
        # rows: the largest slice whose upper bound, base + (peak - base) * rows / known rows, fits the free memory.
        spare_bytes = memory.measure_free(copies) / memory.MARGIN - known_size.base_bytes
        rows = int(known_size.rows * spare_bytes / max(known_size.peak_bytes - known_size.base_bytes, 1))
        if rows < MIN_ROWS_RATIO * known_size.rows:
            return 0
        smaller_size = ceil(known_size.rows * known_size.ranks / rows)
        return smaller_size if ranks < smaller_size < known_size.ranks else 0

    def _count_rows(self, ranks: int) -> int:
        """The rows of the slice of size `ranks`, from any measurement."""
        result = next(iter(self.measurements.values()))
        return result.size.rows if self.request.scaling == "weak" else ceil(result.steps.rows / ranks)

    def _list_full_hosts(self) -> list[Measurement]:
        """The measurements with as many copies as a host has ranks, by increasing ranks."""
        return [result for (_, copies), result in sorted(self.measurements.items()) if copies == self.request.copies]

    def _list_sizes(self) -> list[Size]:
        return [result.size for result in self.measurements.values()]

    def _find_extra_size(self) -> int:
        """One more size to measure, if the times of the three sizes of full hosts are not on a line; else 0.

        The line goes through the times of the smallest and the largest number of ranks. If the middle one is off it,
        the extra size is the geometric mean of the smallest and the middle number of ranks.
        """
        sizes = [result.size for result in self._list_full_hosts()]
        if len(sizes) != 3 or not sizes[0].rows:  # without rows, no step is sharded
            return 0
        fewest, middle, most = sizes  # by ranks
        line = Line([float(fewest.rows), float(most.rows)], [fewest.typical, most.typical])
        is_off_line = abs(line(middle.rows) - middle.typical) > MAX_DEVIATION * middle.typical
        extra_ranks = round((fewest.ranks * middle.ranks) ** 0.5)
        return extra_ranks if is_off_line and fewest.ranks < extra_ranks < middle.ranks else 0


def describe_form(gradients: Sequence[Gradient], kinds: Sequence[str]) -> str:
    """The tensors that a step sums over ranks, as text: gradients, and other collectives by their `kinds`."""
    bytes_text = settings.format_bytes(sum(gradient.bytes for gradient in gradients))
    return f"{len(gradients)} gradient{'s' * (len(gradients) > 1)} of {bytes_text}, and {describe_kinds(kinds)}"


def choose_memory(request: PlanRequest) -> float:
    """The memory limit of a measured process in bytes; 0: the free memory of its host."""
    return request.memory or settings.get_settings().memory


def estimate_peak(sizes: Sequence[Size], rows: int) -> float:
    """The peak bytes of a process with `rows` rows.

    Several slices give a line. A single slice gives an upper bound, by the assumption that all memory which steps add
    to the memory before the first step (`base_bytes`) grows as fast as the rows:

        base_bytes + (peak_bytes - base_bytes) * rows / measured rows
    """
    if len({size.rows for size in sizes}) > 1:
        return Line([float(size.rows) for size in sizes], [float(size.peak_bytes) for size in sizes])(rows)
    largest_size = max(sizes, key=lambda size: size.peak_bytes)
    growth = max(rows / largest_size.rows, 1.0) if largest_size.rows else 1.0
    return largest_size.base_bytes + (largest_size.peak_bytes - largest_size.base_bytes) * growth
