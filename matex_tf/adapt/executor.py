"""Measures the ranks' times for their slices, and changes the slice ratios if that makes steps shorter.

A window of steps is measured without collectives, in which ranks wait, and without the time between steps. Each step
has ratios of its own, which change between its calls. A step that does not train uses the ratios that were agreed on
last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from matex_tf import ops, settings, tags
from matex_tf.adapt import changes, leaving
from matex_tf.adapt.control import Control
from matex_tf.adapt.offers import Offer
from matex_tf.monitor import sampler
from matex_tf.runtime import notes, objects
from matex_tf.sharding import slice_bounds
from matex_tf.steps import events, slices
from matex_tf.steps.plan import StepPlan
from matex_tf.world import world

STEPS = 10
SECONDS = 0.25
MOST = 1000
"""A window has this many steps, or more if they take less than `SECONDS`, but no more than `MOST`."""
PARTS = 16
"""The number of units of a batch if XLA compiles each number of rows separately; more for many ranks."""
NAMED = 4
_ADAPTING = "how slice ratios of a step follow the speed of ranks"


@dataclass(frozen=True)
class Window:
    """The measurement of one rank in a window of steps: typical times of a step, and the numbers of rows."""

    seconds: float
    whole: float
    rows: int
    """Of the largest batch; the last batch of an epoch may be smaller."""
    offer: Offer | None = None
    """The start that `matex run` offers, on ranks that read offers."""
    left: int = 0
    """The number of steps to go."""
    sizes: tuple[int, int] = (0, 0)
    """See `leaving.count_bytes`."""


Ratios = tuple[int, ...]
"""Ratios: the part of their sum that each training rank has (`slice_bounds.deal_block`)."""
Choose = Callable[[int, Sequence[float]], "Ratios | None"]
_choose: Choose | None = None
_steps = 0
_agreed: Ratios = ()
"""The ratios that the ranks have agreed on last; empty: equal ones."""


def override_choice(choose: Choose | None, steps: int = STEPS) -> None:
    """For tests: begin with equal ratios; after each `steps` steps `choose`, with the arguments of
    `Control.choose_shares`, returns the next ones.
    """
    global _choose, _steps, _agreed
    _choose, _steps, _agreed = choose, steps, ()


def start_adapting() -> None:
    """Adapt slice ratios to the speed of the ranks, if the setting asks for it. Call it before any step is planned."""
    if settings.get_settings().adapt == "off" or not world.is_active():
        return
    if why := _find_obstacle():
        _say_even("every step", why)
        return
    slices.let_ratios_change()
    events.step_begins.add_listener(_begin_step)
    events.step_ended.add_listener(_end_step)
    events.unmeasured.add_listener(lambda place: _say_even(place, MEASURED))


MEASURED = "only steps that are a tf.function are measured, such as those of fit"


def _say_even(place: str, why: str) -> None:
    notes.print_note(f"--adapt: {place} keeps equal slices: {why}")


def _find_obstacle() -> str:
    """The reason why slices stay equal in this run; empty if they may change."""
    if settings.get_settings().scaling == "weak":
        return "with weak scaling each rank's batch is its own"
    if settings.get_settings().elastic:
        return "with MATEX_ELASTIC the slices of fewer ranks begin again, which is possible for equal slices only"
    return ""


def _find_obstacle_of(plan: StepPlan) -> str:
    """The reason why the slices of a training step stay equal."""
    from tensorflow.python.framework import config

    if any(plan.are_own):
        return "its rows are each rank's own"
    if config.is_op_determinism_enabled():
        return "the script wants deterministic ops, and the last digits would depend on how fast ranks are"
    return ""


def _is_compiled(plan: StepPlan) -> bool:
    """Whether XLA compiles the step's work on its batch, separately for each number of rows."""
    definition = plan.traced.graph.as_graph_def()
    nodes = [*definition.node, *(node for one in definition.library.function for node in one.node_def)]
    return any("_XlaMustCompile" in node.attr and node.attr["_XlaMustCompile"].b for node in nodes)


def _make_adapting(plan: StepPlan) -> Adapting | None:
    if plan.trained and (why := _find_obstacle_of(plan)):
        _say_even(plan.place, why)
        return None
    assert plan.ratios is not None  # as it was planned after `start_adapting`
    return Adapting(plan.ratios, _is_compiled(plan), bool(plan.trained))


def _begin_step(plan: StepPlan) -> None:
    adapting = tags.get_or_make_tag(plan, _ADAPTING, lambda: _make_adapting(plan))
    if adapting is not None:
        adapting.begin_step()


def _end_step(plan: StepPlan) -> None:
    adapting: Adapting | None = tags.get_tag(plan, _ADAPTING)
    if adapting is not None and adapting.trains:
        adapting.end_step()


class Adapting:
    """The calls of one step.

    Args:
        parts: the slice ratios of the step.
        is_compiled: XLA compiles each number of rows separately, so there should be few.
        trains: the step is measured; otherwise it uses the ratios that were agreed on last.
    """

    def __init__(self, parts: Any, is_compiled: bool = False, trains: bool = True):
        self.trains, self._parts = trains, parts
        self._trainers = world.get_world().trainers
        units = max(PARTS, 2 * self._trainers) if is_compiled else 0
        self._control = Control(self._trainers, units, _agreed)
        self._put: Ratios = ()
        self._steps: list[tuple[float, float]] = []
        self._window = _steps or STEPS
        self._is_warm = _choose is not None
        self._begun = self._outside = 0.0
        self._slow = changes.Streak()
        self._fit: Any = None
        self._took: list[float] = []  # by the steps of the last windows
        self._is_judged = True
        """Whether the change that led to this start is not compared with the time before it."""

    def begin_step(self) -> None:
        """Record the beginning of a step."""
        if not self.trains:
            self._control.ratios = _agreed
        if self._put != self._control.ratios:
            self._put = self._control.ratios
            self._parts.ratios.assign(self._put or (1,) * self._trainers)
        self._outside = ops.get_blocked_seconds()
        self._begun = time.perf_counter()

    def end_step(self) -> None:
        """Record the end of a step. Collective at the end of a window."""
        took = time.perf_counter() - self._begun
        mine = took - (ops.get_blocked_seconds() - self._outside)
        self._steps.append((mine, took))
        if len(self._steps) >= self._window:
            self._decide_shares(int(self._parts.rows.numpy()))
            self._parts.rows.assign(0)
            self._steps = []

    def _look_for_fit(self) -> None:
        """In each call of fit that ranks may leave, steps are judged from the beginning."""
        fit = leaving.find_fit()
        if fit is not self._fit:
            self._fit, self._took, self._slow = fit, [], changes.Streak()
            self._is_judged = fit is None or not fit.is_resumed

    def _decide_shares(self, rows: int) -> None:
        self._look_for_fit()
        mine = Window(
            median(seconds for seconds, _ in self._steps),
            median(took for _, took in self._steps),
            rows,
            None if self._fit is None else leaving.read_offer(),
            0 if self._fit is None else self._fit.count_left(),
            (0, 0) if self._fit is None else leaving.count_bytes(self._fit),
        )
        everyone = objects.allgather(mine, "what their parts of steps take the ranks")
        if _steps == 0:
            longest = max(one.whole for one in everyone)
            self._window = min(max(STEPS, round(SECONDS / longest)), MOST)
        if not self._is_warm:
            # The first window includes tracing and memory allocation.
            self._is_warm = True
            return
        offer = next((one.offer for one in everyone if one.offer is not None), None)
        if offer is not None and self._fit is not None and leaving.leave_hosts(self._fit, offer):
            return
        self._took = [*self._took, max(one.whole for one in everyone)][-changes.JUDGED_WINDOWS :]
        step = median(self._took[-changes.SLOW_WINDOWS :])
        if offer is not None and self._fit is not None and self._is_to_judge(offer):
            self._is_judged = True
            undoing = changes.propose_undoing(offer, len(everyone), step)
            if leaving.leave_if_worth(self._fit, offer, undoing, everyone[0].left, step):
                return
        if not rows:
            return  # the rank had no batch
        seconds = [one.seconds for one in everyone[: self._trainers]]
        before = slice_bounds.count_dealt_rows(rows, self._control.ratios or (1,) * self._trainers)
        if offer is not None and self._fit is not None:
            least = max(rows // (self._control.parts or rows), 1)
            slow = self._slow.confirm(changes.find_slow(before, seconds, least))
            is_free = self._is_judged or not offer.took
            if is_free and len(self._took) >= changes.SLOW_WINDOWS:  # the time of a step is known well enough
                found = leaving.find_change(offer, everyone[0].sizes, before, seconds, slow)
                if leaving.leave_if_worth(self._fit, offer, found, everyone[0].left, step):
                    return
        global _agreed
        chosen = self._control.choose_shares(rows, seconds) if _choose is None else _choose(rows, seconds)
        if chosen is None:
            return
        self._control.ratios = _agreed = chosen
        self._slow = changes.Streak()
        _say_change(slice_bounds.count_dealt_rows(rows, chosen), before, seconds)

    def _is_to_judge(self, offer: Offer) -> bool:
        """Whether it is time to compare the time of steps with that before the last change."""
        return not self._is_judged and offer.took > 0 and len(self._took) == changes.JUDGED_WINDOWS


def _say_change(rows: Sequence[int], before: Sequence[int], seconds: Sequence[float]) -> None:
    """Print one line about a change, and mark it in the records."""
    hosts = world.get_world().hosts
    most_changed = sorted(range(len(rows)), key=lambda rank: -abs(rows[rank] - before[rank]))
    named = sorted(most_changed[:NAMED])
    words = [
        f"rank {rank} ({hosts[rank]}) {rows[rank]} in place of {before[rank]}, which took {seconds[rank] * 1e3:.1f} ms"
        for rank in named
    ]
    more = f", and so on for {len(rows) - NAMED} more ranks" if len(rows) > NAMED else ""
    text = f"--adapt: of each {sum(rows)} rows compute {', '.join(words)}{more}"
    notes.print_note(text)
    sampler.note_event(text)
