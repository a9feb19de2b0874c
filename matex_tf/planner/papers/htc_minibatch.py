"""The fastest size of a batch of a convolutional network, by equation 6 (an integer program) of the paper HTC (`htc`).

Two algorithms compute a convolution: matrix multiplication (GEMM), and FFT, which needs fewer operations for large
filters and more memory. A larger batch shares the work of FFT on filters among more rows, until its feature maps leave
too little memory for FFT.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matex_tf.planner.papers import htc
from matex_tf.planner.papers.domain import check_positive

Table = Sequence[Sequence[float]]
"""A number for each layer and each algorithm."""
_SPEED = 1e12
"""Operations a second of the device, assumed. Its value does not matter: only ratios of times are shown."""


@dataclass(frozen=True)
class Choice:
    """The algorithm of each layer, by its number in the `Table`, and the total seconds of all layers."""

    algorithms: tuple[int, ...]
    seconds: float


def choose_algorithms(times: Table, memory: Table, bound: float) -> Choice | None:
    """Equation 6: one algorithm for each layer, with the least total time within `bound` bytes; None if nothing fits.

    Exact, by dynamic programming over the layers (Nemhauser and Ullmann, Management Science 15, 1969): of all choices
    for the first layers, only efficient choices are extended by the next layer. A choice is efficient if no other
    choice takes at most as many bytes and at most as much time.
    """
    efficient_choices: list[tuple[float, float, tuple[int, ...]]] = [(0.0, 0.0, ())]  # (bytes, seconds, algorithms)
    for layer_seconds, layer_bytes in zip(times, memory):
        extended = sorted(
            (total_bytes + layer_bytes[algorithm], seconds + layer_seconds[algorithm], (*algorithms, algorithm))
            for total_bytes, seconds, algorithms in efficient_choices
            for algorithm in range(len(layer_seconds))
        )
        efficient_choices = []
        for choice in extended:  # by rising bytes, so that an efficient choice is faster than all choices before it
            if choice[0] <= bound and (not efficient_choices or choice[1] < efficient_choices[-1][1]):
                efficient_choices.append(choice)
    return Choice(algorithms=efficient_choices[-1][2], seconds=efficient_choices[-1][1]) if efficient_choices else None


def fft_bytes(rows: int, width: int, depth: int, filters: int) -> float:
    """Bytes of a convolution by real FFT: the spectra of inputs, outputs and filters, each padded to the input.

    The paper has only ratios of memory (Table 2), and no formulas. This one and `gemm_bytes` fit best of 17,000 that
    were tried, within 3%.
    """
    spectrum = 2 * width * (width // 2 + 1)  # numbers: width // 2 + 1 complex ones for each of `width` lines
    return htc.FLOAT * (rows * depth + rows * filters + depth * filters) * spectrum


def gemm_bytes(rows: int, width: int, out: int, depth: int, filters: int) -> float:
    """Bytes of the same convolution by matrix multiplication: inputs, and outputs `out` wide."""
    return htc.FLOAT * rows * (depth * width**2 + filters * out**2)


def fft_operations(rows: int, width: int, depth: int, filters: int) -> float:
    """Floating-point operations by FFT: 2.5 n log2(n) of a real transform of n numbers, and 8 of a complex multiply-add
    for each frequency. The transforms of filters do not depend on `rows`.
    """
    transforms = (rows * depth + rows * filters + depth * filters) * 2.5 * width**2 * math.log2(width**2)
    return transforms + 8 * rows * depth * filters * width * (width // 2 + 1)


def gemm_operations(rows: int, extent: int, out: int, depth: int, filters: int) -> float:
    """Floating-point operations by matrix multiplication: a multiplication and an addition for each weight used."""
    return 2 * rows * out**2 * extent**2 * depth * filters


@dataclass(frozen=True)
class Batch:
    """A batch of `rows`, and the fastest algorithms in the memory that it leaves."""

    rows: int
    choice: Choice

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.choice.seconds


def list_batches(architecture: htc.Architecture, sizes: Iterable[int], device: float) -> list[Batch]:
    """Equation 6 for each batch size that fits a device of `device` bytes.

    Times follow from counts of operations, where the paper has measured times. The memory that a batch leaves follows
    from equations 2 to 5 as printed.
    """
    check_positive("list_batches", device=device)
    batches = []
    for rows in sizes:
        bound = htc.memory_printed(architecture, rows).left(device)
        choice = choose_algorithms(*_tabulate_convolutions(architecture, rows), bound)
        if choice is not None:
            batches.append(Batch(rows, choice))
    return batches


def _tabulate_convolutions(architecture: htc.Architecture, rows: int) -> tuple[Table, Table]:
    """Seconds and bytes of each convolution, by GEMM and by FFT, in this order."""
    shapes = htc.shapes(architecture)
    times, memory = [], []
    for layer, input_shape, output_shape in zip(architecture.layers, shapes, shapes[1:]):
        if layer.filters:
            # Inputs are square (`htc.parse_architecture`), so widths are enough.
            width, depth, filters, out = input_shape.width, input_shape.depth, layer.filters, output_shape.width
            operations_by_gemm = gemm_operations(rows, layer.extent, out, depth, filters)
            operations_by_fft = fft_operations(rows, width, depth, filters)
            times.append([operations_by_gemm / _SPEED, operations_by_fft / _SPEED])
            memory.append([gemm_bytes(rows, width, out, depth, filters), fft_bytes(rows, width, depth, filters)])
    return times, memory
