"""The search: starts trials where there is room for them, writes down what becomes of each, and asks for the next."""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from matex_tf.io.mirror import mirror_command
from matex_tf.tune import warm
from matex_tf.tune.database import FEATURES, RUNNING, Database, DatabaseError, Record, Search
from matex_tf.tune.engines.proposals import WARM, ExhaustedError, Proposals
from matex_tf.tune.space_file import Asked
from matex_tf.tune.trials import place
from matex_tf.tune.trials.trial import DONE, NOTED, OUTPUT, PLACE, STOPPED, Outcome, Slot, Trial, hold_folder

LOOK_EACH = 0.05
"""Seconds between looks at the trials."""
ALIKE = 3
"""As many trials that fail alike, before any has come to an end, end the search."""


class SearchError(RuntimeError):
    """The search cannot go on; the text says why, and what to do."""


class Screen(Protocol):
    """Where the search is seen."""

    def started(self, record: Record) -> None:
        """A trial starts."""

    def looked(self, trials: dict[int, Trial]) -> None:
        """The trials that run were looked at."""

    def ended(self, record: Record, best: Record | None) -> None:
        """A trial has ended."""

    def say(self, text: str) -> None:
        """A line for people."""


@dataclass
class _Under:
    """A trial under way."""

    record: Record
    trial: Trial
    slot: Slot
    layout: place.Layout


@dataclass
class Searching:
    """A search under way.

    Args:
        source: the folder in which the script is run by hand, of which each trial has a copy.
        start: the words that stand before the script and its arguments: `matex run -n 2`.
        slots: a trial runs in each.
        limit: seconds that a trial may take; 0: as long as it wants.
        warms: whether it begins with what earlier searches have found.
    """

    database: Database
    search: Search
    asked: Asked
    source: Path
    start: Sequence[str]
    slots: list[Slot]
    proposals: Proposals
    wanted: int
    screen: Screen
    limit: float = 0.0
    warms: bool = True
    stop: str = ""
    """Why it is to end before its time; set by signals."""
    _free: list[Slot] = field(default_factory=list)
    _under: dict[int, _Under] = field(default_factory=dict)
    _known: dict[int, Record] = field(default_factory=dict)
    _waiting: list[Record] = field(default_factory=list)
    _untold: list[Record] = field(default_factory=list)
    _ended: list[Record] = field(default_factory=list)
    _task: dict[str, Any] | None = None
    _said_shared: bool = False

    @property
    def folder(self) -> Path:
        return Path(self.search.folder)

    def run(self) -> Record | None:
        """Make the trials; gives the best of all, None if there is none.

        Raises:
            SearchError: trials fail alike, or the folder is in use.
            DatabaseError: what became of a trial cannot be written down.
        """
        with hold_search(self.folder):
            self._go_on()
            self._free = list(self.slots)
            try:
                while not self.stop and self._is_unfinished():
                    self._start_some()
                    time.sleep(LOOK_EACH)
                    self._look()
            finally:
                self._end_all()
                self.proposals.close()
        return self.best

    @property
    def best(self) -> Record | None:
        done = [record for record in self._known.values() if record.state == DONE and record.value is not None]
        return min(done, key=lambda one: self.asked.objective.cost(one.value or 0.0), default=None)

    def _is_unfinished(self) -> bool:
        return bool(self._under or self._waiting) or len(self._known) < self.wanted

    def _go_on(self) -> None:
        """Take up what is written down: trials that have ended are told, those that have not are made again."""
        for record in self.database.trials(self.search.id):
            self._known[record.number] = record
            if record.state == RUNNING:
                self._waiting.append(record)
            else:
                self._tell(record)
        self._task = self.database.task(self.search.id)
        if self._task is not None:
            self._warm()

    # Starting

    def _start_some(self) -> None:
        while self._free and not self.stop:
            if self._waiting:
                record = self._waiting.pop(0)
            elif len(self._known) < self.wanted:
                try:
                    found = self.proposals.next()
                except ExhaustedError:
                    self.wanted = len(self._known)
                    self.screen.say(f"every configuration there is was tried: {self.wanted}")
                    return
                if found is None:
                    return
                record = self.database.begin(self.search.id, *found)
                self._known[record.number] = record
            else:
                return
            self._start(record, self._free.pop(0))

    def _start(self, record: Record, slot: Slot) -> None:
        folder = trial_folder(self.folder, record.number)
        folder.mkdir(exist_ok=True)
        with hold_folder(folder):  # what a killed search has left may still run
            shutil.rmtree(folder / PLACE, ignore_errors=True)
            for name in (OUTPUT, NOTED):
                (folder / name).unlink(missing_ok=True)
            layout = place.lay_out(self.source, folder / PLACE, self._left_out())
            place.fill_placeholders(folder / PLACE, self.asked, record.config)
        target = mirror_command(self.search.target, self.source, folder / PLACE)
        words = [*self.start, *target, *place.list_words(self.asked.space, record.config)]
        trial = Trial(folder, words, place.list_variables(record.config), self.asked.objective, slot, self.limit)
        self._under[record.number] = _Under(record, trial, slot, layout)
        if layout.folders and not self._said_shared:
            self._said_shared = True
            names = ", ".join(str(path.relative_to(self.source)) for path in layout.folders[:3])
            self.screen.say(
                f"trials share {names}: there is too much in it for a copy each. What they write there meets"
            )
        self.screen.started(record)

    def _left_out(self) -> set[Path]:
        return {self.folder.absolute(), self.source / "runs"}

    # Ends

    def _look(self) -> None:
        for number, under in list(self._under.items()):
            for line in under.trial.look():
                if "task" in line and self._task is None:
                    self._task = line["task"]
                    self.database.note_task(self.search.id, line["task"])
                    self._warm()
            outcome = under.trial.poll()
            if outcome is not None:
                del self._under[number]
                self._free.append(under.slot)
                self._end(under, outcome)
                self._give_up_if_alike()
        self.screen.looked({number: under.trial for number, under in self._under.items()})

    def _end(self, under: _Under, outcome: Outcome) -> None:
        """Write down what became of a trial that has come to its own end."""
        place.clean_folder(under.trial.folder / PLACE, under.layout)
        if through := place.written_through(under.layout):
            self.screen.say(
                f"{through[0]} has changed while trial {under.record.number} ran. It is too large for each to have "
                "a copy: trials that write it disturb each other"
            )
        record = record_of(under.record, outcome)
        self.database.end(self.search.id, record)
        self._known[record.number] = record
        self._tell(record)
        self.screen.ended(record, self.best)
        self._ended.append(record)

    def _tell(self, record: Record) -> None:
        """A trial that has failed costs as much as the worst, once there is one."""
        self._untold.append(record)
        costs = [self._cost(one) for one in self._known.values() if one.state == DONE]
        if not costs:
            return
        for one in self._untold:
            self.proposals.tell(one.config, self._cost(one) if one.state == DONE else max(costs))
        self._untold = []

    def _cost(self, record: Record) -> float:
        return self.asked.objective.cost(math.nan if record.value is None else record.value)

    def _give_up_if_alike(self) -> None:
        first = self._ended[:ALIKE]
        if len(self._ended) == ALIKE and self.best is None and len({one.kind for one in first}) == 1:
            last = first[-1]
            raise SearchError(
                f"the first {ALIKE} trials have failed alike ({last.why}). What the last of them printed "
                f"({trial_folder(self.folder, last.number) / OUTPUT}):\n{last.tail or '(nothing)'}"
            )

    def _end_all(self) -> None:
        """End the trials under way. They are made again when the search goes on."""
        for under in self._under.values():
            under.trial.end("")
        while self._under:
            time.sleep(LOOK_EACH)
            for number, under in list(self._under.items()):
                outcome = under.trial.poll()
                if outcome is not None:
                    del self._under[number]
                    with contextlib.suppress(DatabaseError, OSError):  # then it is made again, as the others are
                        if outcome.state != STOPPED:  # it had come to its end
                            self._end(under, outcome)

    def _warm(self) -> None:
        """Begin with what searches of tasks that are near have found, and say of which."""
        if not self.warms or self._task is None or any(one.origin == WARM for one in self._known.values()):
            return
        objective = self.search.objective
        others = self.database.other_tasks(self.search.id, objective)
        best = {number: warm.sort_best_first(self.database.trials(number), self.asked.objective) for number in others}
        starts = warm.choose_starts({name: self._task.get(name) for name in FEATURES}, others, best, self.asked.space)
        if self.proposals.put_first(start.config for start in starts):
            names = [found.folder for start in starts if (found := self.database.find_search(start.search))]
            self.screen.say(f"goes on with the best of {', '.join(names)}, whose tasks are alike (--no-warm-start)")


def record_of(record: Record, outcome: Outcome) -> Record:
    """The trial with what became of it."""
    became = {name: value for name, value in vars(outcome).items() if name != "value"}
    return replace(record, value=outcome.value if outcome.state == DONE else None, **became)


def trial_folder(search: Path, number: int) -> Path:
    """The folder of a trial."""
    return search / f"trial-{number}"


@contextlib.contextmanager
def hold_search(folder: Path) -> Iterator[None]:
    """The search's folder, for this process alone.

    Raises:
        SearchError: another process has it.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hold_folder(folder, patience=0.0))
        except TimeoutError:
            raise SearchError(f"{folder}: another `matex tune` goes on with this search") from None
        yield
