"""Whether the updates of a function are overlapped: its first steps show which way is faster.

`call_function` and `trace_function` are the ways in; `_Trial` times both ways.
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

from matex_tf import ops, settings
from matex_tf.analysis import programs
from matex_tf.ops import overlap
from matex_tf.runtime import objects
from matex_tf.sharding import step_weight
from matex_tf.world import world

KIND_GRADIENTS = 1

TIMED = 8
"""Calls of a function with an update."""
IGNORED = {False: 3, True: 16}
"""Such calls before them that are not timed: the first allocate and wake up threads; overlapped, after the 13th update
buckets are chosen."""
LEAST_BYTES = 1 << 20
LEAST_SHARE = 0.1
"""Of smaller updates, and where sums that nothing hides take less of a step, another trace gains nothing."""
GAIN = 0.95
"""At most so much of the time must a step take the other way."""

_CORES = os.cpu_count() or 1

_trials: weakref.WeakKeyDictionary[Any, _Trial] = weakref.WeakKeyDictionary()
_versions: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def call_function(original: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `original(function, *args, **kwargs)` gives, `original` being the call of a `tf.function`.

    In eager code it may be timed, and ranks may agree on a way, as the last thing. All ranks must come to it.
    """
    import tensorflow as tf

    if not tf.executing_eagerly():
        # A function that is called in another one that is traced anew is so, too. What it changes by addition in memory
        # that ranks share, its own trace changes otherwise.
        if step_weight.is_alone():
            return original(function._clone(None), *args, **kwargs)
        return original(function if overlap.is_told() is None else _clone_function(function), *args, **kwargs)
    if not _may_be_tried(function):
        return original(function, *args, **kwargs)
    return _trials.setdefault(function, _Trial()).call(original, function, args, kwargs)


def trace_function(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The concrete function of `function` for these arguments, or their specs, which it will be called for."""
    with overlap.notice_updates() as seen:
        concrete = function.get_concrete_function(*args, **kwargs)
    if _may_be_tried(function):
        trial = _trials.setdefault(function, _Trial())
        trial._bytes, trial._specs = max(trial._bytes, seen.bytes), (args, kwargs)
    return concrete


def _may_be_tried(function: Any) -> bool:
    if settings.get_settings().overlap != "auto" or not world.is_active():
        return False
    here = world.get_world()
    if not here.has_several_nodes and settings.get_strategy_name(settings.get_settings().strategy) in (
        "sharded",
        "servers",
    ):
        return False  # one op sums a gradient in pieces, of which overlapped each rank would sum the whole
    # With fewer cores than ranks there is none for a further thread, unless that mostly waits for a network.
    return (here.has_several_nodes or here.local_size <= _CORES) and world.has_threads()


def _clone_function(function: Any) -> Any:
    """The same function, traced by itself, for the way that updates do not usually go."""
    if function not in _versions:
        _versions[function] = function._clone(None)
    return _versions[function]


class _Trial:
    """How far the trial of one function is.

    Steps are timed as they are: on one host with each update reduced at once, on several with updates overlapped. Where
    sums take a good part of a step, the function is traced a second time for the other way, and timed so; then the
    ranks agree on the faster one.
    """

    def __init__(self) -> None:
        self._way = self._run_first
        self._is_overlapped = overlap.is_usual()  # as it is first
        self._calls = 0
        self._bytes = 0
        self._steps: list[float] = []
        self._sums: list[float] = []
        self._first_step = 0.0
        self._specs: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def call(self, original: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._way(original, function, args, kwargs)

    def _run_first(
        self, original: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        with overlap.notice_updates() as seen:
            if self._bytes < LEAST_BYTES:
                result, has_update = original(function, *args, **kwargs), False
            else:
                result, has_update = self._time_call(original, function, args, kwargs)
        self._bytes = max(self._bytes, seen.bytes)
        if not has_update or not self._is_timed(IGNORED[self._is_overlapped]):
            return result
        everyone = objects.allgather((median(self._steps), median(self._sums)), "steps as they are first")
        self._first_step = max(step for step, _ in everyone)
        # The rank that the others wait for has the time of the sums themselves.
        worth_it = min(sums for _, sums in everyone) >= LEAST_SHARE * self._first_step
        self._go_on_with(self._trace_other if worth_it else self._call_usual)
        return result

    def _trace_other(
        self, original: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The first call the other way: only if the function can be traced again on all ranks."""
        problem = ""
        try:
            # What it prints while it is traced it has printed.
            with overlap.trace_as(not self._is_overlapped), contextlib.redirect_stdout(io.StringIO()):
                given, named = self._specs or (args, kwargs)
                other = _clone_function(function).get_concrete_function(*given, **named).graph
            here = function.get_concrete_function(*given, **named).graph
            if programs.read_program(other).figures != programs.read_program(here).figures:
                problem = "its Python gives other numbers now"
        except Exception as error:  # whatever a script may raise; it runs as it did
            problem = f"{type(error).__name__}: {error}"
        can = not any(objects.allgather(problem, "whether a function can be traced the other way"))
        self._go_on_with(self._run_trial if can else self._call_usual)
        return self._way(original, function, args, kwargs)

    def _run_trial(
        self, original: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        with overlap.trace_as(not self._is_overlapped):
            result, has_update = self._time_call(original, _clone_function(function), args, kwargs)
        if not has_update or not self._is_timed(IGNORED[not self._is_overlapped]):
            return result
        slowest = max(objects.allgather(median(self._steps), "steps the other way"))
        self._go_on_with(self._call_other if slowest <= GAIN * self._first_step else self._call_usual)
        return result

    @staticmethod
    def _call_usual(original: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return original(function, *args, **kwargs)

    def _call_other(
        self, original: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        with overlap.trace_as(not self._is_overlapped):
            return original(_clone_function(function), *args, **kwargs)

    def _go_on_with(self, way: Callable[..., Any]) -> None:
        self._way, self._calls, self._steps, self._sums = way, 0, [], []

    def _time_call(
        self, original: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, bool]:
        """The result of the call, and whether there was an update in it."""
        updates, sums, start = (
            ops.count_completed(KIND_GRADIENTS),
            ops.get_collective_seconds(KIND_GRADIENTS),
            time.perf_counter(),
        )
        result = original(function, *args, **kwargs)
        took, has_update = time.perf_counter() - start, ops.count_completed(KIND_GRADIENTS) > updates
        if has_update:
            self._steps.append(took)
            self._sums.append(ops.get_collective_seconds(KIND_GRADIENTS) - sums)
        return result, has_update

    def _is_timed(self, ignored: int) -> bool:
        """Whether enough calls were timed; the first `ignored` do not count."""
        self._calls += 1
        if self._calls <= ignored:
            self._steps, self._sums = [], []
        return self._calls == ignored + TIMED
