"""Measures phantom ranks of several sizes, smallest slice first. A larger slice is started only if it should fit, as
the smaller ones predict.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from math import ceil

from matex_tf import memory, settings
from matex_tf.launch.planning.requests import Asked
from matex_tf.planner.compute import Line
from matex_tf.planner.measurement import phantoms, started
from matex_tf.planner.measurement.phantoms import Measurement, NotMeasured
from matex_tf.planner.plan_file import Gradient, Size
from matex_tf.planner.report import describe_kinds

MAX_DEVIATION = 0.05
"""If the middle size is further off the line than this, one more size is measured."""
MIN_ROWS_RATIO = 2
"""The growth of memory is measured with at least this factor between numbers of rows."""
ADVICE = (
    "Give the script more data or epochs (some 10 steps), or plan with fewer --ranks, fewer --ranks-per-host, or "
    "MATEX_MICROBATCH=auto where memory ends"
)


def choose_sizes(ranks: Sequence[int], copies: int) -> list[int]:
    """The numbers of ranks to measure: 1, for comparison; and, among those that fill a host of `copies` ranks, the
    smallest, the largest and the geometric middle.
    """
    full = sorted(one for one in {copies, *ranks} if one >= copies)
    middle = min(full, key=lambda one: abs(one * one - full[0] * full[-1]))
    return sorted({1, full[0], middle, full[-1]})


class Sizes:
    """The measurements of a script, keyed by ranks and simultaneous copies; and the reason for each missing one."""

    def __init__(self, script: Sequence[str], asked: Asked):
        self.script, self.asked = script, asked
        self.wanted = choose_sizes(asked.ranks, asked.copies)
        self.found: dict[tuple[int, int], Measurement] = {}
        self.missing: dict[int, str] = {}
        self._is_late = False

    def measure_all(self) -> None:
        """Measure the chosen sizes, and one more if they are not on a line.

        Raises:
            NotMeasured: the script fails before it trains, or fewer than two sizes can be measured.
        """
        for ranks in reversed(self.wanted):
            self.measure_size(ranks)
        if between := self._find_extra_size():
            self.measure_size(between)
        self.check_enough()

    def measure_size(self, ranks: int) -> None:
        """Measure as many copies at once as a host has ranks of this size. Before the first size, a single copy shows
        its memory.

        Raises:
            NotMeasured: the script fails before it trains, with any slice.
        """
        copies = min(self.asked.copies, ranks)
        if self._is_late:
            self._leave_out(ranks, "a smaller slice took too long already")
            return
        if copies > 1 and not self.found:
            self._try(ranks, 1)
            if not self.found:
                return
        why = self._explain_misfit(ranks, copies)
        if why and (smaller := self._find_smaller(ranks, copies)):
            self._try(smaller, copies)
            why = self._explain_misfit(ranks, copies)
        if why:
            self._leave_out(ranks, why)
        else:
            self._try(ranks, copies)

    def measure_whole(self) -> Size | None:
        """Measure whole batches on all ranks of a host at once, as with MATEX_STRATEGY=async. None if that fails."""
        copies = self.asked.copies
        try:
            why = self._explain_misfit(1, copies)
            return None if why else self._measure_copies(1, copies).size
        except NotMeasured as error:
            print(f"matex: async is estimated from rank 0 of 1: {error}", file=sys.stderr, flush=True)
            return None

    def leave_out_unlike(self) -> Measurement:
        """Keep the script alone and the sizes that reduce the same tensors as most full hosts; returns one of the
        latter.

        Raises:
            NotMeasured: fewer than two sizes remain.
        """
        full = [one for (_, copies), one in sorted(self.found.items()) if copies == self.asked.copies]
        many = [one for one in full if one.size.ranks > 1] or full
        common = Counter(one.steps.form for one in reversed(many)).most_common(1)[0][0]
        for (ranks, copies), one in list(self.found.items()):
            if ranks > 1 and one.steps.form != common:
                del self.found[ranks, copies]
                self._leave_out(ranks, f"its step reduces otherwise than most: {describe_form(*one.steps.form)}; most "
                                f"reduce {describe_form(*common)}")  # fmt: skip
        self.check_enough()
        return next(one for one in reversed(many) if one.steps.form == common)

    def check_enough(self) -> None:
        """Raises NotMeasured if the measurements do not determine the cost on other ranks."""
        is_full = any(copies == self.asked.copies for _, copies in self.found)
        if is_full and len({ranks for ranks, _ in self.found}) >= min(2, len(self.wanted)):
            return
        what = "fewer than two sizes" if is_full else f"no size with {self.asked.copies} at once, as ranks on a host,"
        reasons = "".join(f"\nrank 0 of {ranks}: {why}" for ranks, why in sorted(self.missing.items()))
        raise NotMeasured(f"{what} could be measured, which does not tell what other ranks take.{reasons}\n{ADVICE}")

    def _try(self, ranks: int, copies: int) -> None:
        try:
            self.found[ranks, copies] = self._measure_copies(ranks, copies)
        except NotMeasured as error:
            is_short = error.is_short and self.asked.scaling == "strong"  # then on any number of ranks
            if not self.found and (is_short or not error.updates):
                raise  # the slice is not the cause
            self._is_late |= error.is_late
            self._leave_out(ranks, str(error))

    def _leave_out(self, ranks: int, why: str) -> None:
        print(f"matex: rank 0 of {ranks} is extrapolated: {why}", file=sys.stderr, flush=True)
        self.missing[ranks] = why.splitlines()[0]

    def _measure_copies(self, ranks: int, copies: int) -> Measurement:
        how = f"{copies} at once" if copies > 1 else "alone"
        print(f"matex: measuring rank 0 of {ranks}, {how} ...", file=sys.stderr, flush=True)
        asked = self.asked
        limits = phantoms.make_limits(choose_memory(asked), settings.get_settings().microbatch)
        with started.make_place() as folder:
            return phantoms.measure_copies(self.script, ranks, copies, folder, asked.steps, asked.scaling, limits)

    def _explain_misfit(self, ranks: int, copies: int) -> str:
        """Why so many copies are not started at once; "" if they fit, or nothing is known yet."""
        parts, limit = settings.get_settings().microbatch, choose_memory(self.asked)
        if not self.found or (parts == settings.AUTO and not limit):  # limited by its host's memory
            return ""
        rows = self._count_rows(ranks)
        needed = estimate_peak(self._list_sizes(), min(rows, parts) if parts > 0 else rows) * memory.MARGIN
        needed = min(needed, limit) if parts == settings.AUTO else needed
        free = memory.measure_free(copies)
        if needed <= free:
            return ""
        take, left = (f"{size / 2**30:.2f} GiB" + " each" * (copies > 1) for size in (needed, free))
        return f"{f'{copies} at once' if copies > 1 else 'it'} may take {take}, and this host leaves {left}"

    def _find_smaller(self, ranks: int, copies: int) -> int:
        """A number of ranks whose slices are smaller than those of `ranks`, fit safely, and show the growth of memory;
        0 if none.
        """
        known = self._list_sizes()[-1]
        if self.asked.scaling == "weak" or not known.rows or len({size.rows for size in self._list_sizes()}) > 1:
            return 0
        spare = memory.measure_free(copies) / memory.MARGIN - known.base_bytes
        rows = int(known.rows * spare / max(known.peak_bytes - known.base_bytes, 1))
        if rows < MIN_ROWS_RATIO * known.rows:
            return 0
        smaller = ceil(known.rows * known.ranks / rows)
        return smaller if ranks < smaller < known.ranks else 0

    def _count_rows(self, ranks: int) -> int:
        one = next(iter(self.found.values()))
        return one.size.rows if self.asked.scaling == "weak" else ceil(one.steps.rows / ranks)

    def _list_sizes(self) -> list[Size]:
        return [one.size for one in self.found.values()]

    def _find_extra_size(self) -> int:
        """A number of ranks between those of the largest slices of full hosts, if the middle size is off the line; else
        0.
        """
        full = [one.size for (_, copies), one in sorted(self.found.items()) if copies == self.asked.copies]
        if len(full) != 3 or not full[0].rows:
            return 0
        middle = full[1]
        ends = Line([float(full[0].rows), float(full[2].rows)], [full[0].typical, full[2].typical])
        between = round((full[0].ranks * middle.ranks) ** 0.5)
        is_off = abs(ends(middle.rows) - middle.typical) > MAX_DEVIATION * middle.typical
        return between if full[0].ranks < between < middle.ranks and is_off else 0


def describe_form(gradients: Sequence[Gradient], kinds: Sequence[str]) -> str:
    """The tensors that a step reduces, as text."""
    size = settings.format_bytes(sum(one.bytes for one in gradients))
    return f"{len(gradients)} gradient{'s' * (len(gradients) > 1)} of {size}, and {describe_kinds(kinds)}"


def choose_memory(asked: Asked) -> float:
    """The memory limit of a measured process in bytes; 0: the free memory of its host."""
    return asked.memory or settings.get_settings().memory


def estimate_peak(sizes: Sequence[Size], rows: int) -> float:
    """The bytes of a process with `rows` rows: from the line through the sizes; from a single size, an upper bound."""
    if len({size.rows for size in sizes}) > 1:
        return Line([float(size.rows) for size in sizes], [float(size.peak_bytes) for size in sizes])(rows)
    known = max(sizes, key=lambda size: size.peak_bytes)
    times = max(rows / known.rows, 1.0) if known.rows else 1.0
    return known.base_bytes + (known.peak_bytes - known.base_bytes) * times
