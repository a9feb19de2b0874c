"""The number of rows of a part with MATEX_MICROBATCH=auto: as many as fit in memory.

A part is a number of the rank's rows. A region is a set of ops that a loop computes for one part after the other
(`cutting`). The size of a part is the number of rows that it may have; the last part of a region has the rows left.

The first part of a region has one row, and each further part up to four times as many rows, until no rows are
left or the next part would not fit: 1, 4, 16, 64, 64, ... rows if 64 fit. So no row is computed only for the
measurement, and no size is used that is far above the measured ones.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf import memory, settings
from matex_tf.lazy import tf
from matex_tf.observe.measured_steps import read_resident_bytes
from matex_tf.runtime import notes
from matex_tf.world import world

GROWTH = 4
"""The largest factor between the sizes of two parts, while sizes are measured."""
SUMS = 2
"""Tensors that stay in memory for each sum, such as a gradient: the sum over the parts, and the sum over the ranks."""
OUTPUTS = 3
"""Tensors that stay in memory for each result with rows: the list of parts, the whole, and a later op's result."""
NO_PROC = "auto reads memory off /proc, as Linux has it: give a number of rows"
ON_GPU = "auto measures the host's memory, and its weights are in that of a GPU: give a number of rows"

_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1  # for glibc's `mallopt`
SMALL, LARGE = 1 << 23, 1 << 25
"""Arguments of `return_freed`, in bytes. While sizes are measured, blocks from SMALL on return to the system. LARGE is
glibc's own maximum: blocks that malloc keeps avoid page faults, which double the time of a step.
"""


@dataclass
class Measurement:
    """What has been measured for rows of one shape."""

    measured_rows: int = 0  # of the largest measured part
    fitting_rows: int = 0  # the rows that fit according to that part
    safe_rows: int = 1  # rows that may be computed next: no more than fit, and not far above the measured ones
    is_limited: bool = False  # the rows of a batch do not fit: parts have `fitting_rows` from now on
    max_bytes: float = 0.0  # the resident bytes that the process may have, less a margin
    start_bytes: int = 0  # resident bytes before the first part


class Fitting:
    """The number of rows that fit, for one region of a step.

    The graph calls `start` before the first part and `note_part` after each part; `begin` and `go_on` make the calls.

    place: names the step.
    of_step: the `Fitting` of each region of the step; this one is added.
    """

    def __init__(self, place: str, of_step: list[Fitting]):
        self._place, self._of_step = place, of_step
        self._measurements: dict[tuple[int, ...], Measurement] = {}  # by the `row` of `start`
        self._current: Measurement | None = None  # of the present execution of the region; None: it measures nothing
        of_step.append(self)

    @property
    def is_limited(self) -> bool:
        return any(measurement.is_limited for measurement in self._measurements.values())

    def begin(self, count: Any, rows: Sequence[Any]) -> Any:
        """The size of the first part, an int64 scalar of the graph.

        count: the number of rows of the rank. rows: for each input with rows, the vector of its other sizes.
        """
        return _call_python(self.start, count, tf.concat([tf.zeros([0], tf.int64), *rows], 0))

    def go_on(self, size: Any, count: Any, part: Any, sums: Sequence[Any], rows: Sequence[Any]) -> Any:
        """The size of the next part.

        size: the value that `begin` or `go_on` returned for the previous part.
        count, part: the number of rows of the rank, and of the previous part, which is at most `size`.
        sums: the tensors that accumulate sums and other results without rows.
        rows: the tensors with rows that the previous part computed.
        """

        def count_bytes(tensors: Sequence[Any]) -> Any:
            return tf.add_n(
                [tf.zeros([], tf.int64), *(tf.size(tensor, tf.int64) * tensor.dtype.size for tensor in tensors)]
            )

        # One number of each tensor is passed to Python, so that the measurement comes after the part is computed. For a
        # control edge alone, TensorFlow would not compute the tensor.
        first_numbers = [tf.reshape(tensor, [-1])[:1] for tensor in (*sums, *rows)]
        return _call_python(self.note_part, size, count, part, count_bytes(sums), count_bytes(rows), *first_numbers)

    def start(self, count: Any, row: Any) -> np.int64:
        """The size of the first part of `count` rows. row: the sizes of all inputs with rows, without their rows."""
        measurement = self._measurements.setdefault(tuple(row.tolist()), Measurement())
        self._current = None
        if not measurement.is_limited and count > measurement.safe_rows:
            self._current = measurement
            return_freed()
            measurement.start_bytes = read_resident_bytes("VmRSS")
            limit = settings.get_settings().memory
            free_bytes = limit - measurement.start_bytes if limit else memory.measure_free(world.get_world().local_size)
            measurement.max_bytes = (measurement.start_bytes + free_bytes) / memory.MARGIN
            _reset_peak()
        return np.int64(measurement.fitting_rows if measurement.is_limited else measurement.safe_rows)

    def note_part(self, part_size: Any, count: Any, part: Any, sums: Any, rows: Any, *_: Any) -> np.int64:
        """The size of the next part, after a part. The size stays if the part is not measured. Otherwise:

        - If all rows of the rank fit, they may be one part.
        - Else, if a part of at least twice the rows may be computed, it is the next one, and is measured.
        - Else all parts have the number of rows that fit, from now on.

        part_size: the result of `start` or `note_part` for the part.
        count: the rows of the rank.
        part: the rows of the part.
        sums, rows: the bytes of accumulated sums, and of the part's rows that are kept.
        """
        measurement = self._current
        if measurement is None or part < measurement.measured_rows:  # not measured, or a smaller last part
            return np.int64(part_size)
        # The growth since `start`, which earlier parts determined only if they were larger: parts grow while they are
        # measured. It includes what one part adds to `kept_bytes`, so that the estimate is rather too careful.
        part_bytes = max(1, read_resident_bytes("VmHWM") - measurement.start_bytes)
        # What stays in memory for all parts: sums, and the rows that the region returns.
        kept_bytes = SUMS * sums + OUTPUTS * count * rows / part
        measurement.measured_rows = int(part)
        measurement.fitting_rows = max(
            0, int(part * (measurement.max_bytes - measurement.start_bytes - kept_bytes) / part_bytes)
        )
        # A few rows may fit in small blocks that malloc has kept (below SMALL), so they do not predict many more rows.
        measurement.safe_rows = max(1, min(measurement.fitting_rows, GROWTH * measurement.measured_rows))
        is_step_limited = any(fitting.is_limited for fitting in self._of_step)
        if count <= measurement.safe_rows:  # all rows fit
            self._current = None
            if not is_step_limited:  # no region runs in parts for good: malloc may keep freed blocks
                return_freed(LARGE)
            return np.int64(measurement.safe_rows)
        if measurement.safe_rows >= 2 * measurement.measured_rows:
            return np.int64(measurement.safe_rows)
        self._current = None
        measurement.is_limited, measurement.fitting_rows = True, max(1, measurement.fitting_rows)
        if not is_step_limited:
            whole_bytes = measurement.start_bytes + kept_bytes + part_bytes * count / part
            notes.print_note(
                f"MATEX_MICROBATCH=auto: {count} rows of {self._place} are computed in parts of "
                f"{measurement.fitting_rows}: at once this process would take about {whole_bytes / 2**20:.0f} MiB, and "
                f"it may take {measurement.max_bytes / 2**20:.0f} ({memory.MARGIN - 1:.0%} are kept free)"
            )
        return np.int64(measurement.fitting_rows)


def _call_python(function: Any, *args: Any) -> Any:
    """A number that `function` returns on this rank; no other rank needs it. Called in each execution of the graph."""
    number = tf.numpy_function(function, args, tf.int64)
    number.set_shape([])
    return number


def find_obstacle(variables: Sequence[Any]) -> str:
    """The reason why auto cannot measure a step with these variables; empty if it can."""
    if not Path("/proc/self/clear_refs").exists():
        return NO_PROC
    return ON_GPU if any("GPU" in variable.device for variable in variables) else ""


def return_freed(min_bytes: int = SMALL) -> None:
    """From now on, freed blocks of `min_bytes` or more return to the system, so that resident memory is memory in use.

    By default glibc keeps blocks below a size that rises to 32 MiB, in several heaps: parts would take three times the
    used memory.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt") and hasattr(library, "malloc_trim"):
        library.mallopt(_M_MMAP_THRESHOLD, min_bytes)
        library.mallopt(_M_TRIM_THRESHOLD, 2 * min_bytes)
        library.malloc_trim(0)


def _reset_peak() -> None:
    """Reset VmHWM, the peak of resident bytes. If that is refused, the value is too high, and parts are smaller."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except PermissionError:
        return
