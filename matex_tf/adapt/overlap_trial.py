"""Whether the updates of a step are overlapped, with MATEX_OVERLAP=auto: its first calls show which way is faster.

Calls are timed as they are: on one host with each update reduced at once, on several with updates overlapped. Where
sums take a good part of a call, a second copy of the step is made for the other way, and timed so; then the ranks agree
on the faster one.
"""

from __future__ import annotations

import functools
import os
import time
from statistics import median
from typing import Any

from matex_tf import ops, settings, tags
from matex_tf.ops import overlap
from matex_tf.rewrite.graph_ops import has_sequence, iterate_nodes
from matex_tf.runtime import objects
from matex_tf.steps import events, report
from matex_tf.world import world

KIND_GRADIENTS = 1

TIMED = 8
"""Calls of a step with an update."""
IGNORED = {False: 3, True: 16}
"""Such calls before them that are not timed: the first allocate and wake up threads; overlapped, after the 13th update
buckets are chosen."""
LEAST_BYTES = 1 << 20
LEAST_SHARE = 0.1
"""Of smaller updates, and where sums that nothing hides take less of a call, another copy gains nothing."""
GAIN = 0.95
"""At most so much of the time must a call take the other way."""

_CORES = os.cpu_count() or 1

TRIAL = "trial of overlapping"
"""The tag of a plan."""


def start_trials() -> None:
    """Begin, where `MATEX_OVERLAP=auto` leaves the way to the steps."""
    if may_be_tried():
        events.step_begins.add_listener(_begin_call)
        events.step_ended.add_listener(_end_call)


def may_be_tried() -> bool:
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


def _begin_call(plan: Any) -> None:
    if plan.trained:
        tags.get_or_make_tag(plan, TRIAL, lambda: Trial(plan)).begin_call(plan)


def _end_call(plan: Any) -> None:
    trial = tags.get_tag(plan, TRIAL)
    if trial is not None:
        trial.end_call(plan)


class Trial:
    """The trial of one step. is_overlapped: how the next call goes; kinds: within what its copies are made, by way."""

    def __init__(self, plan: Any) -> None:
        self.is_overlapped = overlap.is_usual()
        other = functools.partial(overlap.trace_as, not self.is_overlapped)
        self.kinds = {self.is_overlapped: plan.copy_kind.make_within, not self.is_overlapped: other}
        size = None if plan.program is None else report.count_summed_bytes(plan.program)
        self.is_over = (size or 0) < LEAST_BYTES
        self._first: float | None = None  # seconds of a call the first way
        self._begin_timing()

    def _begin_timing(self) -> None:
        self._calls, self._took, self._sums = 0, list[float](), list[float]()

    def _read_clocks(self) -> tuple[float, float, int]:
        count = ops.count_completed(KIND_GRADIENTS)
        return time.perf_counter(), ops.get_collective_seconds(KIND_GRADIENTS), count

    def begin_call(self, plan: Any) -> None:
        if not self.is_over:
            self._begin = self._read_clocks()

    def end_call(self, plan: Any) -> None:
        if self.is_over:
            return
        now, sums, updates = self._read_clocks()
        if updates == self._begin[2]:
            return
        self._calls += 1
        if self._calls > IGNORED[self.is_overlapped]:
            self._took.append(now - self._begin[0])
            self._sums.append(sums - self._begin[1])
        if len(self._took) == TIMED:
            self._judge(plan)

    def _judge(self, plan: Any) -> None:
        """The way has been timed: go on with the other one, or decide. Collective."""
        everyone = objects.allgather((median(self._took), median(self._sums)), "how long steps take")
        slowest = max(took for took, _ in everyone)
        if self._first is not None:
            self.is_over = True
            if slowest > GAIN * self._first:
                self._go_on_with(plan, not self.is_overlapped)
            return
        self._first = slowest
        # The rank that the others wait for has the time of the sums themselves. Another copy would begin anew a
        # sequence of random numbers.
        if min(sums for _, sums in everyone) < LEAST_SHARE * slowest or has_sequence(plan.own.graph):
            self.is_over = True
            return
        copies = [plan.find_copy()]
        self._go_on_with(plan, not self.is_overlapped)
        copies.append(plan.find_copy())
        self.is_over = not any(map(_has_overlapped, copies))  # XLA has one way for both
        if self.is_over:
            self._go_on_with(plan, not self.is_overlapped)

    def _go_on_with(self, plan: Any, way: bool) -> None:
        self.is_overlapped = way
        plan.use_copy(plan.copy_kind._replace(make_within=self.kinds[way]))
        self._begin_timing()


def _has_overlapped(step: Any) -> bool:
    return any(node.op in overlap.OP_TYPES for node in iterate_nodes(step.graph))
