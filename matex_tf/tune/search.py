"""The search: starts trials in free slots, polls them, records their outcomes, and asks the engine for configurations.

All records are in the database, so that a killed search can continue: trials that have not ended are started again.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from matex_tf.deploy import following
from matex_tf.deploy.job import JobError, UnreachableError, format_count
from matex_tf.tune import rungs
from matex_tf.tune.database import RUNNING, Database, DatabaseError, Record, Search
from matex_tf.tune.engines import warm_start
from matex_tf.tune.engines.proposals import WARM, ExhaustedError, Proposals
from matex_tf.tune.screen import Screen
from matex_tf.tune.settings import Settings
from matex_tf.tune.space_file import SpaceError, Specification
from matex_tf.tune.starter import RunningTrial, Starter, get_trial_folder
from matex_tf.tune.trials.job_trial import Jobs, forget_job, has_job
from matex_tf.tune.trials.process_trial import Processes
from matex_tf.tune.trials.trial import OUTPUT, PAUSED, STOPPED, Outcome, Slot, Trial, hold_folder
from matex_tf.world import file_locks

POLL_INTERVAL = 0.05  # seconds
RETRY_INTERVAL = 30.0  # seconds until a scheduler that gave no answer is asked again
MAX_EQUAL_FAILURES = 3  # the search ends after this number of trials, if all of them have failed in the same way


class SearchError(RuntimeError):
    """The search cannot continue; the text gives the reason and the fix."""


class SearchLoop:
    """A running search. Its trials pass through these collections:

    1. `_choose_next` takes a trial from `_to_start`, continues a paused one, or records a new one of the engine.
    2. `_start_trial` puts it into `_running`, in a slot of `_free_slots`.
    3. `_poll_trials` takes it out when it ends or pauses; `_end_trial` records the outcome and tells the engine.

    Args:
        spec: the space of configurations and the objective, from the user's file.
        backend: starts trials, as processes of this machine or as jobs.
        slots: the resources of the concurrent trials; one trial runs in each.
    """

    def __init__(
        self, database: Database, search: Search, settings: Settings, spec: Specification, backend: Processes | Jobs,
        slots: Sequence[Slot], proposals: Proposals, screen: Screen,
    ):  # fmt: skip
        self.stop = ""
        """The reason why the search is to end early, set by the signal handler of `setup`; "": it goes on."""
        self._database, self._search, self._settings, self._spec = database, search, settings, spec
        self._slots, self._proposals, self._screen = slots, proposals, screen
        self._rungs = rungs.Rungs(settings.rungs, spec.objective)
        self._starter = Starter(search, settings, spec, backend, self._rungs, screen.print_line)
        self._poll_interval = POLL_INTERVAL if settings.slurm is None else following.LOOK_EACH  # seconds
        self._trial_count = settings.trials  # including trials of earlier processes of this search
        self._no_start_before = 0.0  # by the monotonic clock; inf: the scheduler is full, wait until a trial ends
        self._free_slots = list(slots)
        self._running: dict[int, RunningTrial] = {}  # by number of the trial
        self._records: dict[int, Record] = {}  # of all trials, by number
        self._to_start: list[Record] = []  # recorded trials that are to be started again
        self._ended_records: list[Record] = []  # of trials that this process has started
        self._knows_task = False  # whether a trial has reported the task

    def run_trials(self) -> Record | None:
        """Run the trials. Returns the record of the best one; None if no trial has a value.

        Raises:
            SearchError: the first trials fail in the same way.
            DatabaseError: an outcome cannot be recorded.
        """
        self._read_trials()
        try:
            self._resume_jobs()
            while not self.stop and self._is_unfinished():
                self._start_trials()
                time.sleep(self._poll_interval)
                self._poll_trials()
        finally:
            self._end_running_trials()
            self._proposals.close()
        return self.best

    @property
    def best(self) -> Record | None:
        """The best complete trial; while there is none, the best trial of the highest rung."""
        return next(iter(rungs.sort_trials(self._records.values(), self._spec.objective)), None)

    def _get_folder(self, record: Record) -> Path:
        return get_trial_folder(Path(self._search.folder), record.number)

    def _is_unfinished(self) -> bool:
        """Whether a trial runs, or is to be started."""
        are_all_begun = len(self._records) >= self._trial_count
        return bool(self._running or self._to_start or not are_all_begun or self._choose_promoted())

    def _read_trials(self) -> None:
        """Read the recorded trials: report the costs of ended trials, and note the others to be started again."""
        for record in self._database.list_trials(self._search.id):
            self._records[record.number] = record
            if record.state == RUNNING:
                self._to_start.append(record)
            else:
                self._report_cost(record)
        self._add_warm_starts()

    # Starting

    def _resume_jobs(self) -> None:
        """Continue with the jobs that a killed search has left, even if they are more than the slots."""
        for record in [record for record in self._to_start if has_job(self._get_folder(record))]:
            slot = self._free_slots.pop(0) if self._free_slots else self._slots[-1]  # all slots of jobs are equal
            try:
                self._start_trial(record, slot)
            except JobError as error:
                raise SearchError(str(error)) from None
            self._to_start.remove(record)

    def _start_trials(self) -> None:
        """Start a trial in each free slot, as far as there are trials and the scheduler takes them."""
        while self._free_slots and time.monotonic() >= self._no_start_before and not self.stop:
            record = self._choose_next()
            if record is None:
                return
            self._records[record.number] = record
            try:
                self._start_trial(record, self._free_slots[0])
            except JobError as error:
                self._postpone_start(record, error)
                return
            self._free_slots.pop(0)

    def _start_trial(self, record: Record, slot: Slot) -> None:
        try:
            self._running[record.number] = self._starter.start_trial(record, slot)
        except SpaceError as error:  # of the user's files with placeholders, which may have changed
            raise SearchError(str(error)) from None
        self._screen.show_start(record)

    def _postpone_start(self, record: Record, error: JobError) -> None:
        """Put back a trial that the scheduler has not accepted.

        If the scheduler has refused it, because users may have a limited number of jobs, it is started once another
        trial ends. If the scheduler gave no answer now, but did before, it is started after RETRY_INTERVAL.

        Raises:
            SearchError: no other trial runs, so that waiting does not help; or the scheduler has never answered.
        """
        has_answered_before = bool(self._running or self._ended_records)
        is_away = isinstance(error, UnreachableError) and has_answered_before
        if not self._running and not is_away and not self.stop:
            raise SearchError(str(error)) from None
        self._to_start.insert(0, record)
        self._no_start_before = time.monotonic() + RETRY_INTERVAL if is_away else math.inf
        if is_away:  # of each kind of message, "away" or "full", only the first is printed
            self._screen.print_line(f"{error}; it is asked again each {RETRY_INTERVAL:.0f} s", "away")
        else:
            job_count = format_count(len(self._running), "job")
            self._screen.print_line(f"{error}\nThe search goes on with {job_count} at once", "full")

    def _choose_next(self) -> Record | None:
        """The trial to start: one to be started again, else a promoted paused trial, else a new one.

        None: all trials of the search have been started, or the engine still computes its proposal.
        """
        if self._to_start:
            return self._to_start.pop(0)
        if promoted_record := self._choose_promoted():
            resumed_record = replace(promoted_record, state=RUNNING)
            self._database.update_trial(self._search.id, resumed_record)
            return resumed_record
        if len(self._records) >= self._trial_count:
            return None
        try:
            proposal = self._proposals.take_next()  # (configuration, origin)
        except ExhaustedError:
            self._trial_count = len(self._records)
            self._screen.print_line(f"every configuration there is was tried: {self._trial_count}")
            return self._choose_next()  # the search is at its end, at which a paused trial may continue
        return self._database.add_trial(self._search.id, *proposal) if proposal else None

    def _choose_promoted(self) -> Record | None:
        is_end = not self._running and not self._to_start and len(self._records) >= self._trial_count
        return self._rungs.choose_promoted(self._records.values(), is_end)

    # Ends

    def _poll_trials(self) -> None:
        """Read what running trials have logged, and record those that have ended."""
        for number, running_trial in list(self._running.items()):
            running_trial.trial.read_new_lines()
            outcome = running_trial.trial.poll()
            if not self._knows_task:
                self._note_task(running_trial.trial)
            if outcome is not None:
                del self._running[number]
                # More resumed jobs than slots may run. Then the end of one of them frees no slot.
                if len(self._running) + len(self._free_slots) < len(self._slots):
                    self._free_slots.append(running_trial.slot)
                self._no_start_before = 0.0
                if outcome.state == STOPPED:  # from outside, not by the search: the trial continues from its state
                    seconds = running_trial.record.seconds + outcome.seconds
                    self._to_start.append(replace(running_trial.record, seconds=seconds))
                    continue
                self._end_trial(running_trial, outcome)
                self._check_equal_failures()
        self._screen.show_running({number: running_trial.trial for number, running_trial in self._running.items()})

    def _end_trial(self, running_trial: RunningTrial, outcome: Outcome) -> None:
        """Record the outcome of a trial that is complete, has failed, or pauses at a rung. It is not STOPPED."""
        record = self._starter.end_trial(running_trial, outcome)
        # Without a value the rung cannot judge it. The starter has given the rungs up: the trial continues at once.
        if record.state == PAUSED and record.value is None:
            forget_job(self._get_folder(record))
            self._to_start.append(replace(record, state=RUNNING))
            return
        self._database.update_trial(self._search.id, record)
        if record.state == PAUSED:  # it continues in another job
            forget_job(self._get_folder(record))
        self._records[record.number] = record
        self._report_cost(record)
        self._screen.show_end(record, self.best)
        self._ended_records.append(record)

    def _report_cost(self, record: Record) -> None:
        cost = None if record.value is None else self._spec.objective.compute_cost(record.value)
        self._proposals.tell(record.config, cost)

    def _check_equal_failures(self) -> None:
        """Raises SearchError if the first MAX_EQUAL_FAILURES trials of this process have failed in the same way."""
        if len(self._ended_records) != MAX_EQUAL_FAILURES or self.best is not None:
            return
        if len({record.kind for record in self._ended_records}) == 1:
            last, numbers = self._ended_records[-1], ", ".join(str(record.number) for record in self._ended_records)
            raise SearchError(
                f"trials {numbers} have failed alike ({last.why}). What the last of them printed "
                f"({self._get_folder(last) / OUTPUT}):\n{last.tail or '(nothing)'}"
            )

    def _end_running_trials(self) -> None:
        """End the running trials. They are started again when the search continues."""
        for running_trial in self._running.values():
            running_trial.trial.stop_trial("")
        while self._running:
            time.sleep(self._poll_interval)
            for number, running_trial in list(self._running.items()):
                outcome = running_trial.trial.poll()
                if outcome is not None:
                    del self._running[number]
                    # A trial whose outcome cannot be recorded is started again with the others.
                    with contextlib.suppress(DatabaseError, OSError):
                        if outcome.state != STOPPED:  # it had ended by itself
                            self._end_trial(running_trial, outcome)

    def _note_task(self, trial: Trial) -> None:
        """Record the task if the trial has logged it."""
        if task := next((line["task"] for line in trial.lines if "task" in line), None):
            self._database.note_task(self._search.id, task)
            self._add_warm_starts()

    def _add_warm_starts(self) -> None:
        """Once the task is known: propose the best configurations of searches with similar tasks first, and print their
        folders. A resumed search that has tried such configurations before proposes none.
        """
        task = self._database.read_task(self._search.id)
        self._knows_task = task is not None
        has_warm_trials = any(record.origin == WARM for record in self._records.values())
        if not self._settings.warm_start or task is None or has_warm_trials:
            return
        other_tasks = self._database.list_other_tasks(self._search.id, self._search.objective)
        best_configs = {}
        for search_id in other_tasks:
            trials = rungs.sort_trials(self._database.list_trials(search_id), self._spec.objective)
            best_configs[search_id] = [record.config for record in trials]
        start_configs = warm_start.choose_starts(task, other_tasks, best_configs, self._spec.space)
        if self._proposals.put_first(start_configs.values()):
            folders = [
                search.folder for search_id in start_configs if (search := self._database.find_search(search_id))
            ]
            self._screen.print_line(
                f"goes on with the best of {', '.join(folders)}, whose tasks are alike (--no-warm-start)"
            )


@contextlib.contextmanager
def hold_search(folder: Path) -> Iterator[None]:
    """Context that locks the folder of a search for this process.

    Raises:
        SearchError: another process has locked it.
    """
    consequence = "A second `matex tune` that goes on with this search at the same time is not noticed"

    def warn(error: OSError) -> None:
        print(f"matex tune: {file_locks.describe_lack(folder, error, consequence)}", file=sys.stderr, flush=True)

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hold_folder(folder, patience=0.0, warn=warn))
        except TimeoutError:
            raise SearchError(f"{folder}: another `matex tune` goes on with this search") from None
        yield
