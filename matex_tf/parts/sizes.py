"""How many rows a part has: a fixed number, or as many as fit memory (MATEX_MICROBATCH=auto).

The first part of a region then has one row, and each further one up to four times as many, until none are left or they
would not fit: nothing is computed for the measurement alone. None is tried on the word of one far smaller.
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
"""Beside a part's own sums, such as gradients, there are those over the parts, and those over the ranks."""
OUTPUTS = 3
"""The rows of all parts that a region gives, those put together, and what is made of them."""
NO_PROC = "auto reads memory off /proc, as Linux has it: give a number of rows"
ON_GPU = "auto measures the host's memory, and its weights are in that of a GPU: give a number of rows"

_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
SMALL, LARGE = 1 << 23, 1 << 25
"""Bytes: pieces that are kept cost no page faults, which double a step; and what glibc comes to by itself."""


class Fixed:
    """Parts of so many rows."""

    def __init__(self, rows: int):
        self._rows = rows

    def begin(self, count: Any, rows: Sequence[Any]) -> Any:
        import tensorflow as tf

        return tf.constant(self._rows, tf.int64)

    def go_on(self, size: Any, count: Any, part: Any, sums: Sequence[Any], rows: Sequence[Any]) -> Any:
        return size


@dataclass
class Size:
    """What was measured for rows of one shape: `fit` rows fit by that, no more if `is_most`; `sure` certainly do."""

    tried: int = 0
    fit: int = 0
    sure: int = 1
    is_most: bool = False
    most: float = 0.0
    """The most that the process may take."""
    begun: int = 0
    """Resident bytes before the first part: what a part has freed may stay in the process, and tells less."""


class Fitting:
    """The rows that fit for one region of a step, which `place` names; `together` are those of the step."""

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

        # A number of each: what only a control edge asks for, TensorFlow does not compute.
        used = [tf.reshape(one, [-1])[:1] for one in (*sums, *rows)]
        return _call_python(self.note_part, size, count, part, count_bytes(sums), count_bytes(rows), *used)

    def start(self, count: Any, row: Any) -> np.int64:
        """How many of `count` rows the first part has, of tensors that have the sizes `row` besides."""
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
        """How many of `count` rows the next part has, after one of `part` rows.

        sums, rows: bytes of what is kept: of sums, and of the part's rows.
        """
        size = self._measured
        if size is None or part < size.tried:
            return np.int64(asked)
        took = max(1, read_resident_bytes("VmHWM") - size.begun)
        beside = SUMS * sums + OUTPUTS * count * rows / part
        size.tried, size.fit = int(part), max(0, int(part * (size.most - size.begun - beside) / took))
        # Of few rows much may lie in memory that was free within the process: they do not tell of many more.
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
    """The number that `function` of this rank gives, which no rank needs of another."""
    import tensorflow as tf

    made = tf.numpy_function(function, given, tf.int64, stateful=False)
    made.set_shape([])
    return made


def find_obstacle(variables: Sequence[Any]) -> str:
    """Why the rows that fit a step with these variables are not found; empty where they are."""
    if not Path("/proc/self/clear_refs").exists():
        return NO_PROC
    return ON_GPU if any("GPU" in variable.device for variable in variables) else ""


def return_freed(larger: int = SMALL) -> None:
    """From now on what is freed goes back to the system if it is `larger`, so that what is resident is in use.

    glibc keeps pieces below a size that rises to 32 MiB, in several heaps: parts would take thrice what is in use.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt") and hasattr(library, "malloc_trim"):
        library.mallopt(_M_MMAP_THRESHOLD, larger)
        library.mallopt(_M_TRIM_THRESHOLD, 2 * larger)
        library.malloc_trim(0)


def _forget_peak() -> None:
    """VmHWM begins anew. Where that is refused it is too much, and fewer rows are computed at a time."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except PermissionError:
        return
