"""How many rows of a model fit memory (MATEX_MICROBATCH=auto), which is measured before a slice is computed.

One row is computed and dropped, then up to four times as many, and so on. A part takes a constant and so much a row: in
proportion to one that was measured, a larger one takes less. None is tried, or taken, on the word of one far smaller.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf import memory, settings
from matex_tf.analysis import declarations
from matex_tf.analysis.placement import SAME
from matex_tf.gradients import tape_stack
from matex_tf.loops.parts import part_trace
from matex_tf.observe.measured_steps import read_resident_bytes
from matex_tf.runtime import notes
from matex_tf.world import world

GROWTH = 4
SUMS = 2
"""Beside a part's own gradients there are sums of them: over the parts, and over the ranks."""
OUTPUTS = 3
"""The outputs of all rows, their gradients, and what a loss makes of them."""
NO_PROC = "auto reads memory off /proc, as Linux has it: give a number of rows"
ON_GPU = "auto measures the host's memory, and its weights are in that of a GPU: give a number of rows"

_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
SMALL, LARGE = 1 << 23, 1 << 25
"""Bytes: pieces that are kept cost no page faults, which double a step; and what glibc comes to by itself."""

_calls: weakref.WeakKeyDictionary[Any, list[Fitting]] = weakref.WeakKeyDictionary()


def find_obstacle(variables: Sequence[Any]) -> str:
    """Why the rows of a model with these variables are not found; empty where they are."""
    if not Path("/proc/self/clear_refs").exists():
        return NO_PROC
    return ON_GPU if any("GPU" in variable.device for variable in variables) else ""


def find_rows_that_fit(trace: part_trace.PartTrace, leaves: Sequence[Any], count: Any, name: str) -> Any:
    """The rows of a part, a tensor: all `count` of the `leaves` where they fit. The first time that is measured."""
    import tensorflow as tf

    around = tf.compat.v1.get_default_graph()
    while getattr(around, "outer_graph", None) is not None:
        around = around.outer_graph
    fitting = Fitting(name, sum(_count_bytes(one) for one in trace.variables), _calls.setdefault(around, []))
    row = tf.concat([tf.shape(leaf, tf.int64)[1:] for leaf in leaves], 0)

    def turn(tried: Any, _: Any) -> Any:
        """Compute so many rows and their gradients, and drop them."""
        rows = [part_trace.cut_rows(leaf, 0, tried) for leaf in leaves]
        with tf.GradientTape() as tape:
            made = trace.function(tf.zeros([], tf.int64), *rows)
        with tape_stack.keep_plain():
            found = tape.gradient([made[index] for index in trace.targets], trace.variables)
        sizes = [tf.size(one, tf.int64) * one.dtype.size for one in made]
        # A number of each: what only a control edge asks for, TensorFlow does not compute.
        used = [tf.reshape(one, [-1])[:1] for one in tf.nest.flatten(found, True) if one is not None]
        return _call_python(fitting.note_trial, count, tried, row, tf.add_n(sizes), *used)

    begun = _call_python(fitting.begin_trials, count, row)
    return tf.while_loop(lambda tried, _: tried > 0, turn, begun, parallel_iterations=1)[1]


def _call_python(function: Any, *given: Any) -> list[Any]:
    """The two numbers that `function` of this rank gives, which no rank needs of another."""
    import tensorflow as tf

    made = tf.numpy_function(function, given, [tf.int64, tf.int64], stateful=False)
    for one in made:
        one.set_shape([])
        declarations.declare_placement(one, SAME)
    return list(made)


def _count_bytes(variable: Any) -> int:
    return int(np.prod(variable.shape.as_list())) * int(variable.dtype.size)


@dataclass
class Size:
    """What was measured for rows of one shape: `fit` rows certainly fit, which is all that is known unless `is_all`."""

    tried: int = 0
    fit: int = 0
    is_all: bool = False
    base: int = 0
    """Resident bytes before the first part."""
    most: float = 0.0
    """The most that the process may take."""


class Fitting:
    """The rows that fit for one call of a model; `together` are those of its step, which share what memory is left."""

    def __init__(self, name: str, parameters: int, together: list[Fitting]):
        self._name, self._parameters, self._together = name, parameters, together
        self._sizes: dict[tuple[int, ...], Size] = {}
        together.append(self)

    def begin_trials(self, count: Any, row: Any) -> tuple[np.int64, np.int64]:
        """How many rows to try, 0 if nothing is to be, and the rows of a part, for `count` of the shape `row`."""
        size = self._sizes.setdefault(tuple(row.tolist()), Size())
        if size.is_all or count <= size.fit:
            return np.int64(0), np.int64(max(size.fit, 1))
        return_freed()
        size.base = read_resident_bytes("VmRSS")
        limit = settings.get_settings().memory
        free = limit - size.base if limit else memory.measure_free(world.get_world().local_size)
        size.most = (size.base + free) / memory.MARGIN
        _forget_peak()
        return np.int64(min(count, max(1, size.tried))), np.int64(1)

    def note_trial(self, count: Any, tried: Any, row: Any, outputs: Any, *_: Any) -> tuple[np.int64, np.int64]:
        """As `begin_trials`, now that `tried` rows, whose outputs take so many bytes, have been computed."""
        size = self._sizes[tuple(row.tolist())]
        took = max(1, read_resident_bytes("VmHWM") - size.base)
        beside = SUMS * self._parameters + OUTPUTS * count * outputs / tried
        room = (size.most - size.base - beside) / len(self._together)
        size.tried, size.fit = int(tried), max(0, int(tried * room / took))
        following = min(count, size.fit, GROWTH * tried)
        # Of few rows much may lie in memory that was free within the process: they do not tell of many more.
        is_known = size.fit >= count and GROWTH * tried >= count
        if not is_known and following >= 2 * tried:
            return np.int64(following), np.int64(1)
        size.is_all, size.fit = size.fit < count, max(1, size.fit)
        if not any(one.is_all for fitting in self._together for one in fitting._sizes.values()):
            return_freed(LARGE)
        if size.is_all:
            whole = size.base + beside + took * count / tried
            notes.print_note(
                f"MATEX_MICROBATCH=auto: {count} rows of the model '{self._name}' are computed in parts of {size.fit}: "
                f"at once this process would take about {whole / 2**20:.0f} MiB, and it may take "
                f"{size.most / 2**20:.0f} ({memory.MARGIN - 1:.0%} are kept free)"
            )
        return np.int64(0), np.int64(size.fit)


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
