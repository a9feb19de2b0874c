"""The number of rows of a part: fixed, or as many as fit in memory (MATEX_MICROBATCH=auto).

With auto the first part of a region has one row, and each further one up to four times as many, until no rows are left
or the next part would not fit. No row is computed only for the measurement, and no size is trusted that is far above
the measured ones.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf import memory, settings
from matex_tf.observe.measured_steps import read_resident_bytes
from matex_tf.runtime import notes
from matex_tf.world import world

GROWTH = 4
SUMS = 2
"""Copies of sums, such as gradients: those of a part, those over the parts, and those over the ranks."""
OUTPUTS = 3
"""Copies of rows: those of all parts, their concatenation, and the results of ops on it."""
NO_PROC = "auto reads memory off /proc, as Linux has it: give a number of rows"
ON_GPU = "auto measures the host's memory, and its weights are in that of a GPU: give a number of rows"

_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
SMALL, LARGE = 1 << 23, 1 << 25
"""Bytes. Larger pieces that malloc keeps avoid page faults, which double the time of a step; glibc's own maximum."""


class Fixed:
    """Parts of a fixed number of rows."""

    def __init__(self, rows: int):
        self._rows = rows

    def begin(self, count: Any, rows: Sequence[Any]) -> Any:
        import tensorflow as tf

        return tf.constant(self._rows, tf.int64)

    def go_on(self, size: Any, count: Any, part: Any, sums: Sequence[Any], rows: Sequence[Any]) -> Any:
        return size


@dataclass
class Size:
    """The measurement for rows of one shape: `fit` rows fit, and no more if `is_most`; `sure` rows fit for certain."""

    tried: int = 0
    fit: int = 0
    sure: int = 1
    is_most: bool = False
    most: float = 0.0
    """The memory limit of the process."""
    begun: int = 0
    """Resident bytes before the first part. The process may keep memory that a part has freed, so later values tell
    less.
    """


class Fitting:
    """The number of rows that fit, for one region of a step. place: names the step. together: the
    regions of the step.
    """

    def __init__(self, place: str, together: list[Fitting]):
        self._place, self._together = place, together
        self._sizes: dict[tuple[int, ...], Size] = {}
        self._measured: Size | None = None
        together.append(self)

    @property
    def is_most(self) -> bool:
        return any(one.is_most for one in self._sizes.values())

    def begin(self, count: Any, rows: Sequence[Any]) -> Any:
        import tensorflow as tf

        return _call_python(self.start, count, tf.concat([tf.zeros([0], tf.int64), *rows], 0))

    def go_on(self, size: Any, count: Any, part: Any, sums: Sequence[Any], rows: Sequence[Any]) -> Any:
        import tensorflow as tf

        def count_bytes(tensors: Sequence[Any]) -> Any:
            return tf.add_n([tf.zeros([], tf.int64), *(tf.size(one, tf.int64) * one.dtype.size for one in tensors)])

        # One number for each output: TensorFlow does not compute outputs that only a control edge asks for.
        used = [tf.reshape(one, [-1])[:1] for one in (*sums, *rows)]
        return _call_python(self.note_part, size, count, part, count_bytes(sums), count_bytes(rows), *used)

    def start(self, count: Any, row: Any) -> np.int64:
        """The number of rows of the first part, of `count` rows; row: the other sizes of tensors with rows."""
        size = self._sizes.setdefault(tuple(row.tolist()), Size())
        self._measured = None
        if not size.is_most and count > size.sure:
            self._measured = size
            return_freed()
            size.begun = read_resident_bytes("VmRSS")
            limit = settings.get_settings().memory
            free = limit - size.begun if limit else memory.measure_free(world.get_world().local_size)
            size.most = (size.begun + free) / memory.MARGIN
            _forget_peak()
        return np.int64(size.fit if size.is_most else size.sure)

    def note_part(self, asked: Any, count: Any, part: Any, sums: Any, rows: Any, *_: Any) -> np.int64:
        """The number of rows of the next part, of `count` rows, after a part of `part` rows.

        sums, rows: bytes that are kept: of sums, and of the part's rows.
        """
        size = self._measured
        if size is None or part < size.tried:
            return np.int64(asked)
        took = max(1, read_resident_bytes("VmHWM") - size.begun)
        beside = SUMS * sums + OUTPUTS * count * rows / part
        size.tried, size.fit = int(part), max(0, int(part * (size.most - size.begun - beside) / took))
        # A few rows may fit in memory that was free within the process, so they do not predict many more rows.
        size.sure = max(1, min(size.fit, GROWTH * size.tried))
        if count <= size.sure or size.sure >= 2 * size.tried:
            if count <= size.sure:
                self._measured = None
                if not any(one.is_most for one in self._together):
                    return_freed(LARGE)
            return np.int64(size.sure)
        self._measured = None
        is_first = not any(one.is_most for one in self._together)
        size.is_most, size.fit = True, max(1, size.fit)
        if is_first:
            whole = size.begun + beside + took * count / part
            notes.print_note(
                f"MATEX_MICROBATCH=auto: {count} rows of {self._place} are computed in parts of {size.fit}: at once "
                f"this process would take about {whole / 2**20:.0f} MiB, and it may take {size.most / 2**20:.0f} "
                f"({memory.MARGIN - 1:.0%} are kept free)"
            )
        return np.int64(size.fit)


def _call_python(function: Any, *given: Any) -> Any:
    """A number that `function` returns on this rank; no other rank needs it."""
    import tensorflow as tf

    made = tf.numpy_function(function, given, tf.int64, stateful=False)
    made.set_shape([])
    return made


def find_obstacle(variables: Sequence[Any]) -> str:
    """The reason why the fitting number of rows of a step with these variables is not searched; empty if it is."""
    if not Path("/proc/self/clear_refs").exists():
        return NO_PROC
    return ON_GPU if any("GPU" in variable.device for variable in variables) else ""


def return_freed(larger: int = SMALL) -> None:
    """From now on blocks that are freed return to the system if they are `larger`, so resident memory is memory in use.

    glibc keeps blocks below a size that rises to 32 MiB, in several heaps: parts would take three times the used
        memory.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt") and hasattr(library, "malloc_trim"):
        library.mallopt(_M_MMAP_THRESHOLD, larger)
        library.mallopt(_M_TRIM_THRESHOLD, 2 * larger)
        library.malloc_trim(0)


def _forget_peak() -> None:
    """Reset VmHWM. If that is refused, the value is too high, and fewer rows are computed at a time."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except PermissionError:
        return
