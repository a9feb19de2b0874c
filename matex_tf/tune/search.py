"""The search: starts trials where there is room for them, writes down what becomes of each, and asks for the next."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from matex_tf.deploy.job import JobError, UnreachableError, format_count
from matex_tf.tune import rungs
from matex_tf.tune.database import FEATURES, RUNNING, Database, DatabaseError, Record, Search
from matex_tf.tune.engines import warm_start
from matex_tf.tune.engines.proposals import WARM, ExhaustedError, Proposals
from matex_tf.tune.space_file import Asked
from matex_tf.tune.starter import Starter, UnderWay, get_trial_folder
from matex_tf.tune.trials.trial import DONE, OUTPUT, PAUSED, STOPPED, Outcome, Slot, Trial, hold_folder
from matex_tf.world import file_locks

LOOK_EACH = 0.05
AGAIN = 30.0  # seconds until a scheduler that gave no answer is asked again
ALIKE = 3
"""As many trials that fail alike, before any has come to an end, end the search."""


class SearchError(RuntimeError):
    """The search cannot go on; the text says why, and what to do."""


class Screen(Protocol):
    """Where the search is seen."""

    def show_start(self, record: Record) -> None:
        """A trial starts."""

    def show_running(self, trials: dict[int, Trial]) -> None:
        """The trials that run were looked at."""

    def show_end(self, record: Record, best: Record | None) -> None:
        """A trial has ended."""

    def print_line(self, text: str) -> None:
        """A line for people."""


@dataclass
class Searching:
    """A search under way.

    Args:
        starter: starts trials.
        slots: a trial runs in each.
        warms: whether it begins with what earlier searches have found.
        look_each: seconds between looks at the trials.
    """

    database: Database
    search: Search
    asked: Asked
    starter: Starter
    slots: list[Slot]
    proposals: Proposals
    wanted: int
    screen: Screen
    warms: bool = True
    look_each: float = LOOK_EACH
    stop: str = ""
    """Why it is to end before its time; set by signals."""
    _full_until: float = 0.0
    _free: list[Slot] = field(default_factory=list)
    _under: dict[int, UnderWay] = field(default_factory=dict)
    _known: dict[int, Record] = field(default_factory=dict)
    _waiting: list[Record] = field(default_factory=list)
    _untold: list[Record] = field(default_factory=list)
    _ended: list[Record] = field(default_factory=list)
    _task: dict[str, Any] | None = None

    def run_trials(self) -> Record | None:
        """Make the trials; gives the best of all, None if there is none.

        Raises:
            SearchError: trials fail alike, or the folder is in use.
            DatabaseError: what became of a trial cannot be written down.
        """
        with hold_search(self.starter.folder):
            self._resume_trials()
            self._free = list(self.slots)
            try:
                self._find_jobs()
                while not self.stop and self._is_unfinished():
                    self._start_trials()
                    time.sleep(self.look_each)
                    self._look_at_trials()
            finally:
                self._end_all()
                self.proposals.close()
        return self.best

    @property
    def best(self) -> Record | None:
        """Of those that have come to their ends; while there are none, of those that have come to the highest rung."""
        known = [record for record in self._known.values() if record.value is not None]
        return min(known, key=lambda one: rungs.make_sort_key(one, self.asked.objective), default=None)

    def _is_unfinished(self) -> bool:
        return bool(self._under or self._waiting or len(self._known) < self.wanted or self._choose_promoted())

    def _resume_trials(self) -> None:
        """Take up what is written down: trials that have ended are told, those that have not are made again."""
        for record in self.database.list_trials(self.search.id):
            self._known[record.number] = record
            if record.state == RUNNING:
                self._waiting.append(record)
            else:
                self._tell_cost(record)
        self._task = self.database.read_task(self.search.id)
        if self._task is not None:
            self._add_warm_starts()

    # Starting

    def _find_jobs(self) -> None:
        """Take up all jobs that a search which was killed has left, however many trials may run at once now."""
        for record in [one for one in self._waiting if self.starter.has_job(one.number)]:
            slot = self._free.pop(0) if self._free else self.slots[-1]
            try:
                self._start_trial(record, slot)
            except JobError as error:
                raise SearchError(str(error)) from None
            self._waiting.remove(record)

    def _start_trials(self) -> None:
        while self._free and time.monotonic() >= self._full_until and not self.stop:
            record = self._choose_next()
            if record is None:
                return
            self._known[record.number] = record
            try:
                self._start_trial(record, self._free[0])
            except JobError as error:
                self._wait_for_room(record, error)
                return
            self._free.pop(0)

    def _start_trial(self, record: Record, slot: Slot) -> None:
        self._under[record.number] = self.starter.start_trial(record, slot)
        self.screen.show_start(record)

    def _wait_for_room(self, record: Record, error: JobError) -> None:
        """A trial that a scheduler refuses beside others, of which a user may have so many, is started after them.

        A scheduler that has taken trials, and gives no answer now, is asked again.
        """
        is_away = isinstance(error, UnreachableError) and bool(self._under or self._ended)
        if not self._under and not is_away and not self.stop:
            raise SearchError(str(error)) from None
        self._waiting.insert(0, record)
        self._full_until = time.monotonic() + AGAIN if is_away else math.inf
        if is_away:
            self.starter.say_once("away", f"{error}; it is asked again each {AGAIN:.0f} s")
            return
        self.starter.say_once(
            "full", f"{error}\nThe search goes on with {format_count(len(self._under), 'job')} at once"
        )

    def _choose_next(self) -> Record | None:
        """What starts now: what is to be made again, the paused trial that has earned it, or else a new one."""
        if self._waiting:
            return self._waiting.pop(0)
        if promoted := self._choose_promoted():
            self.database.resume_trial(self.search.id, promoted.number)
            return replace(promoted, state=RUNNING)
        if len(self._known) >= self.wanted:
            return None
        try:
            found = self.proposals.take_next()
        except ExhaustedError:
            self.wanted = len(self._known)
            self.screen.print_line(f"every configuration there is was tried: {self.wanted}")
            return self._choose_next()
        return self.database.add_trial(self.search.id, *found) if found else None

    def _choose_promoted(self) -> Record | None:
        """The paused trial that goes on now; at the end of the search the best, if none has come to its own end."""
        known, objective = self._known.values(), self.asked.objective
        over = not self._under and not self._waiting and len(known) >= self.wanted
        found = rungs.choose_promoted(known, objective)
        if found is None and over and all(one.state != DONE for one in known):
            found = rungs.choose_last(known, objective)
        return found

    # Ends

    def _look_at_trials(self) -> None:
        for number, under in list(self._under.items()):
            for line in under.trial.read_new_lines():
                if "task" in line and self._task is None:
                    self._task = line["task"]
                    self.database.note_task(self.search.id, line["task"])
                    self._add_warm_starts()
            outcome = under.trial.poll()
            if outcome is not None:
                del self._under[number]
                if len(self._under) + len(self._free) < len(self.slots):
                    self._free.append(under.slot)
                self._full_until = 0.0
                if outcome.state == STOPPED:  # not by the search: it goes on from its state
                    seconds = under.record.seconds + outcome.seconds
                    self._waiting.append(replace(under.record, seconds=seconds))
                    continue
                self._end_trial(under, outcome)
                self._give_up_if_alike()
        self.screen.show_running({number: under.trial for number, under in self._under.items()})

    def _end_trial(self, under: UnderWay, outcome: Outcome) -> None:
        """Write down what became of a trial that has come to its own end, or pauses at a rung."""
        record = self.starter.end_trial(under, outcome)
        if record.state == PAUSED and record.value is None:  # there are no rungs any more
            self._waiting.append(replace(record, state=RUNNING))
            return
        self.database.end_trial(self.search.id, record)
        if record.state == PAUSED:  # what it goes on as is another job
            self.starter.forget_job(record.number)
        self._known[record.number] = record
        self._tell_cost(record)
        self.screen.show_end(record, self.best)
        self._ended.append(record)

    def _tell_cost(self, record: Record) -> None:
        """A trial that has failed costs as much as the worst, once there is one; one of another space is not told."""
        if self.asked.space.allows(record.config):
            self._untold.append(record)
        costs = [self._compute_cost(one) for one in self._known.values() if one.value is not None]
        if not costs:
            return
        for one in self._untold:
            self.proposals.tell(one.config, self._compute_cost(one) if one.value is not None else max(costs))
        self._untold = []

    def _compute_cost(self, record: Record) -> float:
        return self.asked.objective.compute_cost(math.nan if record.value is None else record.value)

    def _give_up_if_alike(self) -> None:
        first = self._ended[:ALIKE]
        if len(self._ended) == ALIKE and self.best is None and len({one.kind for one in first}) == 1:
            last, numbers = first[-1], ", ".join(str(one.number) for one in first)
            raise SearchError(
                f"trials {numbers} have failed alike ({last.why}). What the last of them printed "
                f"({get_trial_folder(self.starter.folder, last.number) / OUTPUT}):\n{last.tail or '(nothing)'}"
            )

    def _end_all(self) -> None:
        """End the trials under way. They are made again when the search goes on."""
        for under in self._under.values():
            under.trial.stop_trial("")
        while self._under:
            time.sleep(self.look_each)
            for number, under in list(self._under.items()):
                outcome = under.trial.poll()
                if outcome is not None:
                    del self._under[number]
                    with contextlib.suppress(DatabaseError, OSError):  # then it is made again, as the others are
                        if outcome.state != STOPPED:  # it had come to its end
                            self._end_trial(under, outcome)

    def _add_warm_starts(self) -> None:
        """Begin with what searches of tasks that are near have found, and say of which."""
        if not self.warms or self._task is None or any(one.origin == WARM for one in self._known.values()):
            return
        objective = self.search.objective
        others = self.database.list_other_tasks(self.search.id, objective)
        best = {
            number: warm_start.sort_best_first(self.database.list_trials(number), self.asked.objective)
            for number in others
        }
        starts = warm_start.choose_starts(
            {name: self._task.get(name) for name in FEATURES}, others, best, self.asked.space
        )
        if self.proposals.put_first(start.config for start in starts):
            names = [found.folder for start in starts if (found := self.database.find_search(start.search))]
            self.screen.print_line(
                f"goes on with the best of {', '.join(names)}, whose tasks are alike (--no-warm-start)"
            )


@contextlib.contextmanager
def hold_search(folder: Path) -> Iterator[None]:
    """The search's folder, for this process alone.

    Raises:
        SearchError: another process has it.
    """
    follows = "A second `matex tune` that goes on with this search at the same time is not noticed"

    def tell(error: OSError) -> None:
        print(f"matex tune: {file_locks.describe_lack(folder, error, follows)}", file=sys.stderr, flush=True)

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hold_folder(folder, patience=0.0, tell=tell))
        except TimeoutError:
            raise SearchError(f"{folder}: another `matex tune` goes on with this search") from None
        yield
