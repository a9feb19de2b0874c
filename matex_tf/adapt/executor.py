"""The ranks measure what their parts of training steps take, and agree on other shares where that makes steps shorter.

A window of steps is measured without collectives, in which ranks wait, and without what comes between steps.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from matex_tf import ops, settings
from matex_tf.adapt import changes, leaving
from matex_tf.adapt.control import Control
from matex_tf.adapt.offers import Offer
from matex_tf.monitor import sampler
from matex_tf.observe import bottlenecks
from matex_tf.runtime import notes, objects
from matex_tf.sharding import row_shares
from matex_tf.sharding.uneven import leases
from matex_tf.world import world

STEPS = 10
SECONDS = 0.25
MOST = 1000
"""A window has so many steps, or more where they take no `SECONDS`, but no more than `MOST`."""
PARTS = 16
"""In which batches are shared out where each number of rows is compiled anew; more if ranks are many."""
WAITING = 0.5
"""Who waits for its input for more of the time is no faster with fewer rows."""
NAMED = 4


@dataclass(frozen=True)
class Window:
    """What a rank saw in a window of steps: what is typical of one, and which rows it had in the first and the last."""

    seconds: float
    whole: float
    waited: float
    """Which part of the time went into waiting for the input."""
    first: tuple[int, int]
    """Rows here, and of the batch; 0 of a batch that is not shared out."""
    last: tuple[int, int]
    ahead: leases.Place
    """The first that its pipeline has not asked for."""
    offer: Offer | None = None
    """What `matex run` could start instead, on ranks that look for it."""
    left: int = 0
    """The steps that are left."""
    sizes: tuple[int, int] = (0, 0)
    """What `leaving.count_bytes` gives."""


Choose = Callable[[int, Sequence[float]], "tuple[int, ...] | None"]
_choose: Choose | None = None
_steps = 0


def override_choice(choose: Choose | None, steps: int = STEPS) -> None:
    """For tests: after each `steps` steps `choose`, given what `Control.choose_shares` is given, says which shares come
    next.
    """
    global _choose, _steps
    _choose, _steps = choose, steps


def is_on() -> bool:
    """Whether shares are to follow the speed of ranks."""
    return settings.get_settings().adapt != "off" and world.is_active()


def find_obstacle() -> str:
    """Why training on data that could be shared out otherwise is not; empty where it is."""
    from tensorflow.python.framework import config

    if settings.get_settings().scaling == "weak":
        return "with weak scaling each rank's batch is its own"
    if settings.get_settings().elastic:
        return "with MATEX_ELASTIC a lost rank's part of a step is dealt anew, which is done for equal parts only"
    if config.is_op_determinism_enabled():
        return "the script wants deterministic ops, and the last digits would depend on how fast ranks are"
    return ""


MEASURED = "only fit and steps that are a tf.function are measured"


def say_even(where: str, why: str) -> None:
    """Where it was asked for, say of steps that their slices stay equal."""
    if is_on():
        notes.print_note(f"--adapt: {where} keeps equal slices: {why}")


def make_adapting(where: str, is_compiled: bool) -> Adapting | None:
    """For steps that each cut their own batch; None where slices are to stay equal, which is said if not asked for."""
    if not is_on():
        return None
    if why := find_obstacle():
        say_even(where, why)
        return None
    return Adapting(where, is_compiled)


class Adapting:
    """The steps of one function that trains.

    Args:
        where: what is trained by, for messages.
        is_compiled: each number of rows is compiled anew, so that there are to be few.
        ahead: by what the pipeline cuts batches before steps begin; None where each step cuts its own, by `shares`.
    """

    def __init__(self, where: str, is_compiled: bool = False, ahead: leases.Leases | None = None):
        here = world.get_world()
        self._where, self._ahead = where, ahead
        shares = leases.get_agreed() if ahead is None else ahead.last
        self._trainers, self._none = here.trainers, (0,) * here.servers
        parts = max(PARTS, 2 * self._trainers) if is_compiled else 0
        self._control = Control(self._trainers, parts, shares[: self._trainers])
        self._steps: list[tuple[float, float]] = []
        self._window = _steps or STEPS
        self._first = (0, 0)
        self._is_warm = _choose is not None
        self._begun = self._outside = self._waited = 0.0
        self._slow = changes.Streak()
        self._took: list[float] = []  # by the steps of the last windows
        self._fit = None if ahead is None else leaving.find_fit()
        # Whether the change that led to this start needs no comparison with what was before it.
        self._is_judged = self._fit is None or not self._fit.goes_on

    @property
    def shares(self) -> leases.Shares:
        """Those of the ranks in the next step, or in those that come once what was cut ahead is used up."""
        return self._control.shares + self._none

    def begin_step(self) -> None:
        """A step begins."""
        if not self._steps:
            self._waited = bottlenecks.get_waited_seconds()
        self._outside = ops.get_blocked_seconds()
        self._begun = time.perf_counter()

    def end_step(self, numbers: Callable[[], Sequence[float]]) -> None:
        """It is over. Collective at the end of a window.

        Args:
            numbers: gives those of the step (`step_weight`).
        """
        took = time.perf_counter() - self._begun
        mine = took - (ops.get_blocked_seconds() - self._outside)
        self._steps.append((mine, took))
        if len(self._steps) == 1:
            self._first = _compute_rows(numbers())
        if len(self._steps) < self._window:
            return
        with contextlib.nullcontext((0, 0)) if self._ahead is None else self._ahead.hold_pipelines() as ahead:
            self._decide_shares(ahead, _compute_rows(numbers()))
        self._steps = []

    def _decide_shares(self, ahead: leases.Place, last: tuple[int, int]) -> None:
        took = sum(took for _, took in self._steps)
        mine = Window(
            median(seconds for seconds, _ in self._steps),
            median(took for _, took in self._steps),
            0.0 if self._ahead is None else (bottlenecks.get_waited_seconds() - self._waited) / took,
            self._first,
            last,
            ahead,
            None if self._fit is None else leaving.read_offer(),
            0 if self._fit is None else self._fit.count_left(),
            (0, 0) if self._fit is None else leaving.count_bytes(self._fit),
        )
        everyone = objects.allgather(mine, "what their parts of steps take the ranks")
        if _steps == 0:
            longest = max(one.whole for one in everyone)
            self._window = min(max(STEPS, round(SECONDS / longest)), MOST)
        if not self._is_warm:
            # In the first window functions are traced and memory is allocated.
            self._is_warm = True
            return
        offer = next((one.offer for one in everyone if one.offer is not None), None)
        if offer is not None and self._fit is not None and leaving.leave_hosts(self._fit, offer):
            return
        if not self._has_agreed_shares(everyone):
            return  # the shares that are in force came in the middle of it
        self._took = [*self._took, max(one.whole for one in everyone)][-changes.JUDGED_WINDOWS :]
        step = median(self._took[-changes.SLOW_WINDOWS :])
        if offer is not None and self._fit is not None and self._is_to_judge(offer):
            self._is_judged = True
            undoing = changes.propose_undoing(offer, len(everyone), step)
            if leaving.leave_if_worth(self._fit, offer, undoing, everyone[0].left, step):
                return
        waiting = max(range(self._trainers), key=lambda rank: everyone[rank].waited)
        if everyone[waiting].waited > WAITING and _choose is None:
            self._control.forget_windows()
            self._slow = changes.Streak()
            notes.print_note(
                f"--adapt: rank {waiting} mostly waits for its input, whatever part of a batch it has; meanwhile "
                "slices stay as they are"
            )
            return
        rows = max(everyone[0].first[1], everyone[0].last[1])  # an epoch's last batch may have fewer
        seconds = [one.seconds for one in everyone[: self._trainers]]
        before = row_shares.count_dealt_rows(rows, self._control.shares)
        if offer is not None and self._fit is not None:
            least = max(rows // (self._control.parts or rows), 1)
            slow = self._slow.confirm(changes.find_slow(before, seconds, least))
            is_free = self._is_judged or not offer.took
            if is_free and len(self._took) >= changes.SLOW_WINDOWS:  # what a step takes is known well enough
                found = leaving.find_change(offer, everyone[0].sizes, before, seconds, slow)
                if leaving.leave_if_worth(self._fit, offer, found, everyone[0].left, step):
                    return
        shares = self._control.choose_shares(rows, seconds) if _choose is None else _choose(rows, seconds)
        if shares is None:
            return
        self._control.shares = shares
        self._slow = changes.Streak()
        if self._ahead is not None:
            self._ahead.change_shares(max(one.ahead for one in everyone), self.shares)
        leases.agree_on(self.shares)
        _say_change(row_shares.count_dealt_rows(rows, shares), before, seconds)

    def _is_to_judge(self, offer: Offer) -> bool:
        """Whether it is time to compare what steps take with what they took before the last change."""
        return not self._is_judged and offer.took > 0 and len(self._took) == changes.JUDGED_WINDOWS

    def _has_agreed_shares(self, everyone: Sequence[Window]) -> bool:
        """Whether all steps of a window had the shares that were agreed on last."""
        return all(
            [one[0] for one in of_ranks] == row_shares.count_dealt_rows(of_ranks[0][1], self.shares)
            and of_ranks[0][1] > 0
            for of_ranks in ([one.first for one in everyone], [one.last for one in everyone])
        )


def _compute_rows(numbers: Sequence[float]) -> tuple[int, int]:
    mean, _, _, of_rows = numbers
    return round(mean * of_rows), round(of_rows)


def _say_change(rows: Sequence[int], before: Sequence[int], seconds: Sequence[float]) -> None:
    """One line for a change, and a mark in what is recorded."""
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
