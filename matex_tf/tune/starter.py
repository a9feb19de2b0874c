"""Starts trials for `search.SearchLoop`: makes a trial's folder, starts its command, makes its record at the end."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from matex_tf.files.mirror import Mirror, make_mirror_command, mirror_folder
from matex_tf.tune.database import Record, Search
from matex_tf.tune.rungs import Rungs
from matex_tf.tune.settings import Settings
from matex_tf.tune.space_file import Specification
from matex_tf.tune.trials import place
from matex_tf.tune.trials.job_trial import Jobs
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
    Rules,
    Slot,
    Trial,
    hold_folder,
)


@dataclass
class RunningTrial:
    """A running trial, its resources, and the mirror in which it runs."""

    record: Record
    trial: Trial
    slot: Slot
    mirror: Mirror


class Starter:
    """Starts the trials of a search.

    Args:
        backend: starts trials as processes of this machine, or as jobs.
        say: prints a message. With a kind as second argument, it prints only the first message of this kind.
    """

    def __init__(
        self, search: Search, settings: Settings, spec: Specification, backend: Processes | Jobs, rungs: Rungs,
        say: Callable[..., None],
    ):  # fmt: skip
        self._search, self._spec, self._backend, self._rungs, self._say = search, spec, backend, rungs, say
        self._source = Path(settings.source)  # the folder in which the user runs the script; each trial has a copy
        self._limit = settings.limit

    def start_trial(self, record: Record, slot: Slot) -> RunningTrial:
        """Start a trial; with rungs it continues from its saved state, if there is one.

        A job that a killed search has submitted for this trial is found again.
        """
        folder = get_trial_folder(Path(self._search.folder), record.number)
        folder.mkdir(exist_ok=True)
        limit = max(self._limit - record.seconds, 1e-3) if self._limit else 0.0  # the rest of its time; 0: no limit
        rules = Rules(self._spec.objective, limit, self._rungs.find_next(record), self._rungs.saves_states)
        trial = self._backend.find_trial(folder, rules)  # the job of a killed search; None: start the trial
        with hold_folder(folder):  # processes of a killed search may still run
            if not trial and not (folder / STATE).is_dir():  # without saved states, remove an earlier attempt
                shutil.rmtree(folder / PLACE, ignore_errors=True)
                for name in (OUTPUT, NOTED):
                    (folder / name).unlink(missing_ok=True)
            mirror = mirror_folder(self._source, folder / PLACE, {Path(self._search.folder), self._source / "runs"})
            if not trial:
                place.check_files(self._spec, self._source)  # the user may have changed them
                place.fill_placeholders(folder / PLACE, self._spec, record.config)
        if mirror.folders:
            names = ", ".join(map(str, mirror.folders[:3]))
            message = f"trials share {names}, which is too large for a copy each. Their files there may conflict"
            self._say(message, "shared")
        if not trial:
            target = make_mirror_command(self._search.target, self._source, folder / PLACE)
            command = [*target, *place.list_options(self._spec.space, record.config)]
            variables = place.list_variables(record.config)
            trial = self._backend.start_trial(folder, command, variables, rules, slot)
        return RunningTrial(record, trial, slot, mirror)

    def end_trial(self, running_trial: RunningTrial, outcome: Outcome) -> Record:
        """Make the record of a trial that has ended or reached a rung, and clean its folder.

        If a trial has paused without a value, further trials do not pause.
        """
        trial, number = running_trial.trial, running_trial.record.number
        place.clean_folder(trial.folder / PLACE, running_trial.mirror)
        if changed_originals := running_trial.mirror.list_changed_originals():
            self._say(
                f"{changed_originals[0]} has changed while trial {number} ran. It is too large for a copy each, so "
                "trials that write it disturb each other"
            )
        if outcome.state in (DONE, FAILED):  # it does not continue
            shutil.rmtree(trial.folder / STATE, ignore_errors=True)
        if outcome.state == DONE and trial.rules.pause:
            prefix = f"trial {number} has run to its end"
            if not trial.epochs:
                self._say(f"{prefix}: trials pause in Keras' fit only, and no epoch of fit has ended", "no fit")
            elif trial.has_reached_rung:  # but it has not paused there
                self._say(f"{prefix}: the state of its fit could not be saved ({trial.folder / OUTPUT})", "not kept")
        if outcome.state == PAUSED and not outcome.curve:  # the objective is known at the end of a trial only
            self._rungs.give_up()
            reason = f"after {trial.rules.pause} epochs there is nothing to judge them by"
            self._say(f"trials run to their ends, as {reason}. {outcome.why}", "no rungs")
        record = running_trial.record
        # A record has the objective at each rung. By it the search chooses the trials that continue.
        has_reached_rung = outcome.state == PAUSED and outcome.value is not None
        values = (*record.rungs, outcome.value) if has_reached_rung else record.rungs
        return replace(record, **{**vars(outcome), "seconds": record.seconds + outcome.seconds, "rungs": values})


def get_trial_folder(search: Path, number: int) -> Path:
    return search / f"trial-{number}"
