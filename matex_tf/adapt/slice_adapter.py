"""Measures how long each rank computes its slice, and changes slice ratios if that makes steps shorter (`--adapt`).

Example: rank 1 computes a row in twice the time of rank 0. From equal slices of 32 rows each, the ratios become 43 to
21, and both ranks need the same time.

`start_adapting` listens to the events of steps. Each step has a `SliceAdapter`. If the step trains, its adapter
measures windows of consecutive calls, such as 10. A measured time excludes the time blocked in collectives, in which
the rank waits for other ranks. At the end of a window ranks exchange their measurements, so all of them choose the same
ratios (`control`). A step that does not train, such as the step of `evaluate`, uses the ratios last agreed on.

With `--adapt=ranks` the end of a window in `fit` may also end the run: `matex run` restarts it with other ranks or
another strategy. `changes` proposes the change, `leaving` lets ranks leave, `offers` tells `matex run`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

from matex_tf import ops, settings, tags
from matex_tf.adapt.control import Control
from matex_tf.adapt.leaving import Leaving, Report
from matex_tf.monitor import sampler
from matex_tf.rewrite.graph_ops import iterate_nodes
from matex_tf.runtime import notes, objects
from matex_tf.sharding import slice_bounds
from matex_tf.steps import events, slices
from matex_tf.steps.function_plan import FunctionPlan
from matex_tf.world import world

MIN_STEPS, MIN_SECONDS, MAX_STEPS = 10, 0.25, 1000
"""A window has `MIN_STEPS` steps, or more if they take less than `MIN_SECONDS`, but no more than `MAX_STEPS`."""
COMPILED_UNITS = 16
"""XLA compiles a step once for each number of rows. So slices of a compiled step are multiples of a 16th of a batch.
With more than 8 training ranks the unit is smaller: a batch then has two units for each rank."""
MAX_NAMED_RANKS = 4
"""The maximum number of ranks that a message about new ratios names."""
_ADAPTER = "how slice ratios of a step follow the speed of ranks"
"""The tag under which a plan has its `SliceAdapter`; None if the slices of the step stay equal."""
_UNMEASURED = "only steps that are a tf.function are measured, such as those of fit"


class Window(NamedTuple):
    """The measurements that a rank sends to the others at the end of a window. Times are medians over its steps."""

    own_seconds: float  # of a step, without the time blocked in collectives
    step_seconds: float
    report: Report | None  # for `--adapt=ranks`


Ratios = tuple[int, ...]
"""Slice ratios, one integer for each training rank: with (2, 1, 1), rank 0 computes half of each batch."""
ChooseRatios = Callable[[int, Sequence[float]], "Ratios | None"]
_replacing_choice: ChooseRatios | None = None
"""The function called in place of `Control.choose_ratios` (`override_choice`); None if nothing is replaced."""
_fixed_window_steps = 0
"""The number of steps of each window (`override_choice`); 0: it follows the time of steps."""
_agreed_ratios: Ratios = ()
"""The ratios that the ranks have agreed on last; empty: equal ones."""


def override_choice(choose: ChooseRatios | None, steps: int = MIN_STEPS) -> None:
    """For tests and benchmarks: begin with equal ratios, and replace `Control.choose_ratios` by `choose`.

    choose: has the arguments and the result of `Control.choose_ratios`. If `choose` is None, nothing is replaced.
    steps: the number of steps of each window; 0: as many as usual.
    """
    global _replacing_choice, _fixed_window_steps, _agreed_ratios
    _replacing_choice, _fixed_window_steps, _agreed_ratios = choose, steps, ()


def start_adapting() -> None:
    """Adapt slice ratios to the speed of the ranks, if the setting asks for it. Call it before any step is planned."""
    if settings.get_settings().adapt == "off" or not world.is_active():
        return
    if obstacle := _find_obstacle():
        _report_equal_slices("every step", obstacle)
        return
    slices.let_ratios_change()
    events.step_begins.add_listener(_begin_step)
    events.step_ended.add_listener(_end_step)
    events.unmeasured.add_listener(lambda place: _report_equal_slices(place, _UNMEASURED))


def _report_equal_slices(step: str, reason: str) -> None:
    notes.print_note(f"--adapt: {step} keeps equal slices: {reason}")


def _find_obstacle() -> str:
    """The reason why slices stay equal in this run; empty if they may change."""
    if settings.get_settings().scaling == "weak":
        return "with weak scaling each rank's batch is its own"
    if settings.get_settings().elastic:
        return "with MATEX_ELASTIC the slices of fewer ranks begin again, which is possible for equal slices only"
    return ""


def _find_step_obstacle(plan: FunctionPlan) -> str:
    """The reason why the slices of a training step stay equal; empty if they may change."""
    from tensorflow.python.framework import config

    if plan.has_own_rows:
        return "its rows are each rank's own"
    if config.is_op_determinism_enabled():
        return "the script wants deterministic ops, and the last digits would depend on how fast ranks are"
    return ""


def _is_compiled(plan: FunctionPlan) -> bool:
    """Whether XLA compiles the step's work on its batch, separately for each number of rows."""
    nodes = iterate_nodes(plan.traced.graph)
    return any("_XlaMustCompile" in node.attr and node.attr["_XlaMustCompile"].b for node in nodes)


def _make_adapter(plan: FunctionPlan) -> SliceAdapter | None:
    if plan.trained and (obstacle := _find_step_obstacle(plan)):
        _report_equal_slices(plan.place, obstacle)
        return None
    assert plan.inputs.ratios is not None  # the step was planned after `start_adapting`
    return SliceAdapter(plan.inputs.ratios, is_compiled=_is_compiled(plan), trains=bool(plan.trained))


def _begin_step(plan: FunctionPlan) -> None:
    adapter = tags.get_or_make_tag(plan, _ADAPTER, lambda: _make_adapter(plan))
    if adapter is not None:
        adapter.begin_step()


def _end_step(plan: FunctionPlan) -> None:
    adapter: SliceAdapter | None = tags.get_tag(plan, _ADAPTER)
    if adapter is not None and adapter.trains:
        adapter.end_step()


class SliceAdapter:
    """Adapts the slice ratios of one step.

    slice_ratios: the `SliceRatios` of the step.
    is_compiled: whether XLA compiles the step, once for each number of rows (`COMPILED_UNITS`).
    trains: whether the step trains. Only then it is measured, and may change the ratios.
    """

    def __init__(self, slice_ratios: Any, is_compiled: bool = False, trains: bool = True):
        self.trains, self._slice_ratios = trains, slice_ratios
        self._trainers = world.get_world().trainers
        units = max(COMPILED_UNITS, 2 * self._trainers) if is_compiled else 0
        self._control = Control(self._trainers, units, _agreed_ratios)
        self._assigned: Ratios = ()  # the value of the variable of `_slice_ratios` now; empty: equal ratios
        self._steps: list[tuple[float, float]] = []  # of this window: see `Window.own_seconds`, `Window.step_seconds`
        self._window_steps = _fixed_window_steps or MIN_STEPS  # the number of steps of this window
        # The first window includes tracing and memory allocation, so it is ignored. A replacing choice ignores times.
        self._is_warm = _replacing_choice is not None
        # When the running step began (time.perf_counter), and the seconds that this rank had been blocked by then:
        self._start = self._blocked_at_start = 0.0
        self._leaving = Leaving()

    def begin_step(self) -> None:
        """Record the beginning of a step, after new ratios are assigned."""
        if not self.trains:
            self._control.ratios = _agreed_ratios
        if self._assigned != self._control.ratios:
            self._assigned = self._control.ratios
            self._slice_ratios.ratios.assign(self._assigned or (1,) * self._trainers)
        self._blocked_at_start = ops.get_blocked_seconds()
        self._start = time.perf_counter()

    def end_step(self) -> None:
        """Record the end of a step. Collective at the end of a window."""
        seconds = time.perf_counter() - self._start
        blocked_seconds = ops.get_blocked_seconds() - self._blocked_at_start
        self._steps.append((seconds - blocked_seconds, seconds))
        if len(self._steps) >= self._window_steps:
            self._end_window(int(self._slice_ratios.rows.numpy()))
            self._slice_ratios.rows.assign(0)
            self._steps = []

    def _end_window(self, rows: int) -> None:
        """Leave the run, or choose new ratios, by the measurements of all ranks. Collective.

        All ranks decide alike: they have gathered the measurements, and all other conditions are equal on all ranks.

        rows: of the largest batch in this window, as the last batch of an epoch may be smaller; 0: there was none.
        """
        own_seconds, step_seconds = (median(seconds) for seconds in zip(*self._steps))
        window = Window(own_seconds, step_seconds, self._leaving.make_report())
        windows: list[Window] = objects.allgather(window, "measured times of the ranks' slices")
        longest_step = max(window.step_seconds for window in windows)
        if _fixed_window_steps == 0:
            self._window_steps = min(max(MIN_STEPS, round(MIN_SECONDS / longest_step)), MAX_STEPS)
        if not self._is_warm:
            self._is_warm = True
            return
        seconds = [window.own_seconds for window in windows[: self._trainers]]
        rows_of_ranks = slice_bounds.count_dealt_rows(rows, self._control.ratios or (1,) * self._trainers)
        reports, smallest = [window.report for window in windows], self._control.compute_smallest(rows)
        is_leaving = self._leaving.decide(reports, longest_step, rows_of_ranks, seconds, smallest)
        if rows and not is_leaving:
            self._choose_ratios(rows_of_ranks, seconds)

    def _choose_ratios(self, rows_of_ranks: Sequence[int], seconds: Sequence[float]) -> None:
        """Choose the ratios from now on, and report a change.

        rows_of_ranks, seconds: the rows of each training rank, and the time that it needed for them.
        """
        global _agreed_ratios
        rows, choose_ratios = sum(rows_of_ranks), _replacing_choice or self._control.choose_ratios
        new_ratios = choose_ratios(rows, seconds)
        if new_ratios is None:
            return
        self._control.ratios = _agreed_ratios = new_ratios
        self._leaving.begin_streak()  # whether a rank is too slow is judged by windows with the new slices
        _report_change(slice_bounds.count_dealt_rows(rows, new_ratios), rows_of_ranks, seconds)


def _report_change(rows: Sequence[int], rows_before: Sequence[int], seconds: Sequence[float]) -> None:
    """Print one line about the ranks whose slices change most, and mark the change in the records."""
    hosts = world.get_world().hosts
    ranks_by_change = sorted(range(len(rows)), key=lambda rank: -abs(rows[rank] - rows_before[rank]))
    slice_texts = [
        f"rank {rank} ({hosts[rank]}) computes {rows[rank]} in place of {rows_before[rank]}, "
        f"which took {seconds[rank] * 1e3:.1f} ms"
        for rank in sorted(ranks_by_change[:MAX_NAMED_RANKS])
    ]
    unlisted_text = f"; {len(rows) - MAX_NAMED_RANKS} other ranks are not listed" if len(rows) > MAX_NAMED_RANKS else ""
    text = f"--adapt: of each {sum(rows)} rows, {'; '.join(slice_texts)}{unlisted_text}"
    notes.print_note(text)
    sampler.note_event(text)
