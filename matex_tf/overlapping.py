"""Whether the updates of a function are overlapped on one host: its first steps show which way is faster.

Steps are timed as they are, with each update reduced at once. Where that takes a good part of a step, the function is
traced a second time with its updates overlapped, and timed so; then the ranks agree on the faster way. Between hosts
updates are overlapped from the start (ops/overlap.py).
"""

from __future__ import annotations

import contextlib
import io
import os
import time
import weakref
from collections.abc import Callable
from statistics import median
from typing import Any

from matex_tf import ops, settings, world
from matex_tf.ops import overlap

KIND_GRADIENTS = 1

IGNORED, TIMED = 3, 8
"""Calls of a function with an update, once it has been traced: the first allocate and wake up threads."""
SETTLING = 16
"""Overlapped calls that are not timed: after the 13th update its buckets are chosen."""
LEAST_BYTES = 1 << 20
LEAST_SHARE = 0.1
"""Of smaller updates, and where summing them takes less of a step, nothing is to be gained by another trace."""
GAIN = 0.95
"""At most so much of the time must an overlapped step take: the way that needs no thread is the one in doubt."""

_CORES = os.cpu_count() or 1

_trials: weakref.WeakKeyDictionary[Any, _Trial] = weakref.WeakKeyDictionary()
_versions: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def call(original: Callable, function: Any, args: tuple, kwargs: dict) -> Any:
    """What `original(function, *args, **kwargs)` gives, `original` being the call of a `tf.function`.

    In eager code it may be timed, and ranks may agree on a way, as the last thing. All ranks must come to it.
    """
    import tensorflow as tf

    if not tf.executing_eagerly():
        # A function that is called in another one that is traced anew is so, too.
        return original(_overlapped(function) if overlap.is_on() else function, *args, **kwargs)
    if not _may_be_tried(function):
        return original(function, *args, **kwargs)
    return _trials.setdefault(function, _Trial()).call(original, function, args, kwargs)


def _may_be_tried(function: Any) -> bool:
    if settings.current().overlap != "auto" or not world.is_active():
        return False
    here = world.current()
    # With fewer cores than ranks there is none for a further thread.
    return not here.has_several_nodes and here.local_size <= _CORES and world.has_threads()


def _overlapped(function: Any) -> Any:
    """The same function, traced by itself."""
    if function not in _versions:
        _versions[function] = function._clone(None)
    return _versions[function]


class _Trial:
    """How far the trial of one function is."""

    def __init__(self) -> None:
        self._way = self._at_once
        self._calls = 0
        self._bytes = 0
        self._steps: list[float] = []
        self._sums: list[float] = []
        self._step_at_once = 0.0

    def call(self, original: Callable, function: Any, args: tuple, kwargs: dict) -> Any:
        return self._way(original, function, args, kwargs)

    def _at_once(self, original: Callable, function: Any, args: tuple, kwargs: dict) -> Any:
        with overlap.noticed() as seen:
            if self._bytes < LEAST_BYTES:
                result, has_update = original(function, *args, **kwargs), False
            else:
                result, has_update = self._timed(original, function, args, kwargs)
        self._bytes = max(self._bytes, seen.bytes)
        if not has_update or not self._is_timed(IGNORED):
            return result
        everyone = world.control.allgather((median(self._steps), median(self._sums)), "steps with updates at once")
        self._step_at_once = max(step for step, _ in everyone)
        # The rank that the others wait for has the time of the sums themselves.
        worth_it = min(sums for _, sums in everyone) >= LEAST_SHARE * self._step_at_once
        self._go_on_with(self._trace if worth_it else self._as_it_is)
        return result

    def _trace(self, original: Callable, function: Any, args: tuple, kwargs: dict) -> Any:
        """The first overlapped call: only if the function can be traced again on all ranks."""
        problem = ""
        try:
            # What it prints while it is traced it has printed.
            with overlap.on(), contextlib.redirect_stdout(io.StringIO()):
                _overlapped(function).get_concrete_function(*args, **kwargs)
        except Exception as error:  # whatever a script may raise; it runs as it did
            problem = f"{type(error).__name__}: {error}"
        can = not any(world.control.allgather(problem, "whether a function can be traced with updates overlapped"))
        self._go_on_with(self._in_trial if can else self._as_it_is)
        return self._way(original, function, args, kwargs)

    def _in_trial(self, original: Callable, function: Any, args: tuple, kwargs: dict) -> Any:
        with overlap.on():
            result, has_update = self._timed(original, _overlapped(function), args, kwargs)
        if not has_update or not self._is_timed(SETTLING):
            return result
        slowest = max(world.control.allgather(median(self._steps), "steps with updates overlapped"))
        self._go_on_with(self._hidden if slowest <= GAIN * self._step_at_once else self._as_it_is)
        return result

    @staticmethod
    def _as_it_is(original: Callable, function: Any, args: tuple, kwargs: dict) -> Any:
        return original(function, *args, **kwargs)

    @staticmethod
    def _hidden(original: Callable, function: Any, args: tuple, kwargs: dict) -> Any:
        with overlap.on():
            return original(_overlapped(function), *args, **kwargs)

    def _go_on_with(self, way: Callable) -> None:
        self._way, self._calls, self._steps, self._sums = way, 0, [], []

    def _timed(self, original: Callable, function: Any, args: tuple, kwargs: dict) -> tuple[Any, bool]:
        """The result of the call, and whether there was an update in it."""
        updates, sums, start = ops.count(KIND_GRADIENTS), ops.seconds(KIND_GRADIENTS), time.perf_counter()
        result = original(function, *args, **kwargs)
        took, has_update = time.perf_counter() - start, ops.count(KIND_GRADIENTS) > updates
        if has_update:
            self._steps.append(took)
            self._sums.append(ops.seconds(KIND_GRADIENTS) - sums)
        return result, has_update

    def _is_timed(self, ignored: int) -> bool:
        """Whether enough calls were timed; the first `ignored` do not count."""
        self._calls += 1
        if self._calls <= ignored:
            self._steps, self._sums = [], []
        return self._calls == ignored + TIMED
