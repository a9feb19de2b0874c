"""A trial under way: its folder is laid out, its command started, and what became of it is made a record."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from matex_tf.files.mirror import Mirror, make_mirror_command, mirror_folder
from matex_tf.tune.database import Record
from matex_tf.tune.space_file import Asked
from matex_tf.tune.trials import place
from matex_tf.tune.trials.job_trial import Jobs, forget_job, has_job
from matex_tf.tune.trials.process_trial import Processes
from matex_tf.tune.trials.trial import (
    DONE,
    FAILED,
    NOTED,
    OUTPUT,
    PAUSED,
    PLACE,
    STATE,
    Outcome,
    Slot,
    Trial,
    hold_folder,
)


@dataclass
class UnderWay:
    """A trial that runs."""

    record: Record
    trial: Trial
    slot: Slot
    layout: Mirror


@dataclass
class Starter:
    """Starts the trials of a search.

    Args:
        folder: of the search.
        source: the folder in which the script is run by hand, of which each trial has a copy.
        where: starts them here, or as jobs.
        target: the script and its arguments.
        limit: seconds that a trial may take; 0: as long as it wants.
        rungs: after how many epochs trials pause.
        say: is told what is said to people.
        say_once: is told what of a kind is said once.
    """

    folder: Path
    asked: Asked
    source: Path
    where: Processes | Jobs
    target: Sequence[str]
    limit: float
    rungs: tuple[int, ...]
    say: Callable[[str], None]
    say_once: Callable[[str, str], None]

    def start_trial(self, record: Record, slot: Slot) -> UnderWay:
        """Start a trial; with rungs it goes on from its state, where there is one.

        One whose job was submitted by a search that was killed is found again.
        """
        folder = get_trial_folder(self.folder, record.number)
        folder.mkdir(exist_ok=True)
        objective = self.asked.objective
        limit = max(self.limit - record.seconds, 1e-3) if self.limit else 0.0
        pause = next(iter(self.rungs[len(record.rungs) :]), 0) if self.rungs else None
        trial = self.where.find_trial(folder, objective, limit, pause)
        with hold_folder(folder):  # what a killed search has left may still run
            if not trial and not (folder / STATE).is_dir():
                shutil.rmtree(folder / PLACE, ignore_errors=True)
                for name in (OUTPUT, NOTED):
                    (folder / name).unlink(missing_ok=True)
            layout = mirror_folder(self.source, folder / PLACE, {self.folder.absolute(), self.source / "runs"})
            if not trial:
                place.fill_placeholders(folder / PLACE, self.asked, record.config)
        if layout.folders:
            names = ", ".join(map(str, layout.folders[:3]))
            self.say_once("shared", f"trials share {names}: there is too much in it for a copy each. What they write "
                           "there meets")  # fmt: skip
        target = make_mirror_command(self.target, self.source, folder / PLACE)
        words = [*target, *place.list_options(self.asked.space, record.config)]
        variables = place.list_variables(record.config)
        trial = trial or self.where.start_trial(folder, words, variables, objective, slot, limit, pause)
        return UnderWay(record, trial, slot, layout)

    def end_trial(self, under: UnderWay, outcome: Outcome) -> Record:
        """Its record, once it has come to an end or to a rung."""
        trial, number = under.trial, under.record.number
        place.clean_folder(trial.folder / PLACE, under.layout)
        if through := under.layout.list_changed_originals():
            self.say(
                f"{through[0]} has changed while trial {number} ran. It is too large for each to have a copy: trials "
                "that write it disturb each other"
            )
        if outcome.state in (DONE, FAILED):
            shutil.rmtree(trial.folder / STATE, ignore_errors=True)
        ran = f"trial {number} has run to its end"
        if outcome.state == DONE and trial.pause and not trial.epochs:
            self.say_once("no fit", f"{ran}: trials pause within Keras' fit, of which no epoch has ended")
        elif outcome.state == DONE and trial.pause and trial.pause <= trial.epochs:
            self.say_once("not kept", f"{ran}: the state of its fit could not be kept ({trial.folder / OUTPUT})")
        if outcome.state == PAUSED and not outcome.curve:
            self.rungs = (0,)  # whose trials keep their state, and pause no more
            what = f"after {trial.pause} epochs there is nothing to judge them by"
            self.say_once("no rungs", f"trials run to their ends, as {what}. {outcome.why}")
        return make_record(under.record, outcome)

    def has_job(self, number: int) -> bool:
        """Whether a job of a trial was submitted, of whose end nobody knows yet."""
        return has_job(get_trial_folder(self.folder, number))

    def forget_job(self, number: int) -> None:
        """The job of a trial has ended, and what it found is written down."""
        forget_job(get_trial_folder(self.folder, number))


def make_record(record: Record, outcome: Outcome) -> Record:
    """The trial with what became of it."""
    became = {name: value for name, value in vars(outcome).items() if name != "value"}
    became["seconds"] += record.seconds
    known = outcome.state in (DONE, PAUSED) and bool(outcome.curve)
    rungs = (*record.rungs, outcome.value) if outcome.state == PAUSED and known else record.rungs
    return replace(record, value=outcome.value if known else None, rungs=rungs, **became)


def make_once(say: Callable[[str], None]) -> Callable[[str, str], None]:
    """What says of a kind only the first text."""
    said: set[str] = set()

    def say_once(kind: str, text: str) -> None:
        if kind not in said:
            said.add(kind)
            say(text)

    return say_once


def get_trial_folder(search: Path, number: int) -> Path:
    """The folder of a trial."""
    return search / f"trial-{number}"
