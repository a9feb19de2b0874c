"""The mini-batch by HTC's integer program (equation 6) and the memory of convolution algorithms (Table 2).

A larger batch uses the device better, until its feature maps leave too little memory for the fast algorithms.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matex_tf.planner.papers import htc
from matex_tf.planner.papers.domain import check_positive

Table = Sequence[Sequence[float]]
"""A number for each layer and each algorithm."""

GEMM, FFT = 0, 1
_MOST_SEARCHED = 1 << 20


@dataclass(frozen=True)
class Choice:
    """The algorithm of each layer, and the total seconds of all layers."""

    algorithms: tuple[int, ...]
    seconds: float


def choose_algorithms(times: Table, memory: Table, bound: float) -> Choice | None:
    """Equation 6: one algorithm for each layer, with the least time within `bound` bytes; None if nothing fits.

    Uses scipy's `milp` if scipy is installed (`pip install matex_tf[plan]`), else tries all combinations.
    """
    return (choose_by_milp if importlib.util.find_spec("scipy") else choose_by_search)(times, memory, bound)


def choose_by_search(times: Table, memory: Table, bound: float) -> Choice | None:
    """`choose_algorithms` by trying every combination. Raises ValueError for more than a million combinations."""
    _check_tables(times, memory)
    if math.prod(map(len, times)) > _MOST_SEARCHED:
        raise ValueError(
            f"{len(times)} layers have more combinations than can be tried; scipy solves them: `pip install "
            f"matex_tf[plan]`"
        )
    best = None
    for algorithms in itertools.product(*(range(len(row)) for row in times)):
        if _sum_table(memory, algorithms) <= bound:
            seconds = _sum_table(times, algorithms)
            if best is None or seconds < best.seconds:
                best = Choice(algorithms, seconds)
    return best


def choose_by_milp(times: Table, memory: Table, bound: float) -> Choice | None:
    """`choose_algorithms` by scipy's mixed-integer solver (HiGHS)."""
    import numpy as np
    from scipy import optimize

    _check_tables(times, memory)
    # Scale numbers to about 1, as the solver's tolerances expect.
    bytes_unit = max(abs(bound), *(max(row) for row in memory)) or 1.0
    seconds_unit = max(max(row) for row in times) or 1.0
    costs = np.concatenate([np.asarray(row, float) for row in times]) / seconds_unit
    weights = np.concatenate([np.asarray(row, float) for row in memory]) / bytes_unit
    one_each = np.zeros((len(times), len(costs)))
    ends = list(itertools.accumulate(map(len, times), initial=0))
    for layer, (first, stop) in enumerate(itertools.pairwise(ends)):
        one_each[layer, first:stop] = 1
    solution = optimize.milp(
        costs,
        integrality=np.ones(len(costs)),
        bounds=optimize.Bounds(0, 1),
        constraints=[optimize.LinearConstraint(weights[None], -np.inf, bound / bytes_unit),
                     optimize.LinearConstraint(one_each, 1, 1)],
        options={"mip_rel_gap": 0},
    )  # fmt: skip
    if solution.x is None:
        return None
    algorithms = tuple(int(np.argmax(solution.x[first:stop])) for first, stop in itertools.pairwise(ends))
    return Choice(algorithms, _sum_table(times, algorithms))


def fft_over_gemm(rows: int, width: int, out: int, depth: int, filters: int) -> float:
    """Memory of FFT over memory of GEMM (Table 2). The paper has no formula; this one was found by a search of 17,000.

    FFT: spectra of inputs, outputs and filters, each padded to the input. GEMM: inputs and outputs.
    """
    return fft_bytes(rows, width, depth, filters) / gemm_bytes(rows, width, out, depth, filters)


def fft_bytes(rows: int, width: int, depth: int, filters: int) -> float:
    """Bytes of a convolution of square inputs `width` wide by real FFT."""
    spectrum = 2 * width * (width // 2 + 1)
    return htc.FLOAT * (rows * depth + rows * filters + depth * filters) * spectrum


def gemm_bytes(rows: int, width: int, out: int, depth: int, filters: int) -> float:
    """Bytes of the same convolution by matrix multiplication."""
    return htc.FLOAT * rows * (depth * width**2 + filters * out**2)


def fft_operations(rows: int, width: int, depth: int, filters: int) -> float:
    """Floating-point operations of FFT: the transforms, and a complex multiply-add for each frequency."""
    transforms = (rows * depth + rows * filters + depth * filters) * 2.5 * width**2 * math.log2(width**2)
    return transforms + 8 * rows * depth * filters * width * (width // 2 + 1)


def gemm_operations(rows: int, extent: int, out: int, depth: int, filters: int) -> float:
    """Floating-point operations of matrix multiplication."""
    return 2 * rows * out**2 * extent**2 * depth * filters


@dataclass(frozen=True)
class Batch:
    """A batch of `rows`, and the fastest algorithms in the memory that it leaves."""

    rows: int
    choice: Choice

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.choice.seconds


def list_batches(
    architecture: htc.Architecture, sizes: Iterable[int], device: float, speed: float = 1e12
) -> list[Batch]:
    """Equation 6 for each batch size that fits a device of `device` bytes and `speed` operations a second.

    Times are counts of operations (the paper measures them); memory follows equations 2 to 5 as printed.
    """
    check_positive("list_batches", device=device, speed=speed)
    batches = []
    for rows in sizes:
        bound = htc.memory_printed(architecture, rows).left(device)
        choice = choose_algorithms(*_tabulate_convolutions(architecture, rows, speed), bound)
        if choice is not None:
            batches.append(Batch(rows, choice))
    return batches


def _tabulate_convolutions(architecture: htc.Architecture, rows: int, speed: float) -> tuple[Table, Table]:
    """Seconds and bytes of each convolution, by GEMM and by FFT."""
    shapes = htc.shapes(architecture)
    times, memory = [], []
    for layer, input_shape, output in zip(architecture.layers, shapes, shapes[1:]):
        if layer.filters:
            planes = input_shape.width, input_shape.depth, layer.filters
            times.append(
                [
                    gemm_operations(rows, layer.extent, output.width, *planes[1:]) / speed,
                    fft_operations(rows, *planes) / speed,
                ]
            )
            memory.append([gemm_bytes(rows, input_shape.width, output.width, *planes[1:]), fft_bytes(rows, *planes)])
    return times, memory


def _sum_table(table: Table, algorithms: Sequence[int]) -> float:
    return math.fsum(row[algorithm] for row, algorithm in zip(table, algorithms))


def _check_tables(times: Table, memory: Table) -> None:
    if not times or [len(row) for row in times] != [len(row) for row in memory] or not all(times):
        raise ValueError(
            "choose_algorithms: expected a time and a memory for one or more algorithms of each of one or more layers"
        )
