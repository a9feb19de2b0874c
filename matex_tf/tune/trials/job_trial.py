"""Trials that run as Slurm jobs, one job for each trial. Jobs outlive the search, which finds them when it is resumed.

A job writes two files into the folder of its trial: BEGAN when it begins, and CODE with its exit code. Each poll reads
the files. Slurm is queried rarely, and only for what the files do not tell: whether a job waits, and how a job ended
that wrote no exit code.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from matex_tf.deploy import following, run_folder
from matex_tf.deploy.job import ENDED, FORGOTTEN, RUNNING, STUCK, WAITING, Job, JobError, State, UnreachableError
from matex_tf.deploy.sbatch import job_script
from matex_tf.deploy.slurm import SLURM
from matex_tf.tune.trials.trial import (
    GRACE,
    OUTPUT,
    PLACE,
    STOPPED,
    Outcome,
    Rules,
    Slot,
    Trial,
    make_variables,
    remove_own_variables,
)
from matex_tf.world import task_environment
from matex_tf.world.exit_codes import EXIT_REQUEUE

FORGET_SECONDS = 300.0  # seconds after which Slurm by default forgets a job that has ended (MinJobAge)
BEGAN, CODE, STOP_REQUEST = "began", run_folder.EXIT_CODE, "told"
"""Files of a trial's folder: written when the job begins, at its end, and by the search that asks it to end."""
_ENDED_BY_SLURM = {"TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "REVOKED"}
"""States of jobs that Slurm has ended. Their trials continue from their saved states."""


def format_trial_job(
    job_options: job_script.Slurm, target: Sequence[str], folder: Path, variables: Mapping[str, str], rules: Rules
) -> str:
    """The script of the job that runs a trial of `target` in its absolute `folder`."""
    trial_variables = make_variables(folder, variables, rules)
    preparation = [
        *(f"export {name}={shlex.quote(value)}" for name, value in trial_variables.items()),
        f'echo "$SLURM_JOB_ID" > "$run_folder/{BEGAN}"',
        f'cd "$run_folder/{PLACE}" || exit {os.EX_CONFIG}',
    ]
    return job_script.format_script(
        job_options, job_options.make_command(target), str(folder), "".join(f"{line}\n" for line in preparation)
    )


class JobTrial(Trial):
    """A trial that is the Slurm job `job`, whose state is queried every `query_interval` seconds.

    `was_resumed`: the job was submitted by an earlier process of the search, which may have asked it to end.
    """

    def __init__(
        self, folder: Path, job: Job, rules: Rules, query_interval: float, say: Callable[..., None],
        was_resumed: bool = False,
    ):  # fmt: skip
        super().__init__(folder, rules)
        self.job, self._query_interval, self._say = job, query_interval, say
        self.waits = True
        self._next_query_at = time.monotonic() + following.ASK_EACH
        self._next_cancel_at = 0.0  # seconds of time.monotonic; 0: it was not cancelled yet
        if was_resumed:
            self._states_before = set()  # this job may have saved all states
            if (folder / STOP_REQUEST).is_file():
                self._stop_requested_at, self._stop_reason = time.monotonic(), (folder / STOP_REQUEST).read_text()

    @property
    def seconds(self) -> float:
        """The seconds for which the job has run, by the clock of the file system."""
        if not (self.folder / BEGAN).is_file():
            return 0.0
        code_file = self.folder / CODE
        ended_at = code_file.stat().st_mtime if code_file.is_file() else time.time()
        return max(ended_at - (self.folder / BEGAN).stat().st_mtime, 0.0)

    def _find_outcome(self) -> Outcome | None:
        self.waits = not (self.folder / BEGAN).is_file()
        outcome = self._judge_job()
        if outcome is not None and outcome.state == STOPPED:  # it is submitted again when the search continues
            forget_job(self.folder)
        return outcome

    def _request_stop(self) -> None:
        (self.folder / STOP_REQUEST).write_text(self._stop_reason)

    def _enforce_stop(self, waited_seconds: float) -> Outcome | None:
        """Cancel the job, and repeat this every GRACE seconds until the job ends.

        If the search itself ends (there is no `_stop_reason`), it waits for the job for 3 * GRACE seconds, and then
        leaves the job in Slurm. waited_seconds: seconds since the trial was asked to end.
        """
        if time.monotonic() < self._next_cancel_at:  # it still has time to end
            return None
        if not self._stop_reason and waited_seconds > 3 * GRACE:
            self._say(f"job {self.job.id} may still run: scancel {self.job.id}", self.job.id)
            return Outcome(state=STOPPED, seconds=self.seconds)
        self._cancel_job()
        return None

    def _judge_job(self) -> Outcome | None:
        """The outcome, from the job's exit code, else from its state in Slurm; None while it waits or runs."""
        code = run_folder.read_exit_code(self.folder)
        if code is not None:
            # With EXIT_REQUEUE, the job was asked to end, at its time limit for example. The trial then has failed only
            # if it has saved no state since it started (`judge_outcome`).
            return self.judge_outcome(code, "time over, no progress" if code == EXIT_REQUEUE else "")
        state = self._query_state()
        if state is not None and state.phase == STUCK:  # it waits for a condition that does not arise by itself
            self._cancel_job()
            return self.judge_outcome(1, f"its job {state}")
        if state is None or state.phase not in (ENDED, FORGOTTEN):
            return None
        code = run_folder.read_exit_code(self.folder)  # the job may have written it since
        return self._judge_state(state) if code is None else self.judge_outcome(code)

    def _judge_state(self, state: State) -> Outcome:
        """The outcome of a job that has written no exit code, from its state in Slurm."""
        if state.phase == FORGOTTEN:  # it was cancelled: Slurm queues a job again that a lost node or time limit ends
            return self.judge_outcome(1, f"its job {state.words}")
        if state.words in _ENDED_BY_SLURM:
            return self.judge_outcome(EXIT_REQUEUE, state.words)
        if state.words == "FAILED" and not (self.folder / OUTPUT).is_file():
            return self.judge_outcome(1, f"no output: does the job's node see {self.folder.parent}?")
        # COMPLETED and FAILED say no more than the exit code; another word is the reason, such as OUT_OF_MEMORY.
        return self.judge_outcome(state.code or 0, "" if state.words in ("COMPLETED", "FAILED") else state.words)

    def _query_state(self) -> State | None:
        """The job's state in Slurm; None if the next query is not due, or if Slurm gives no answer."""
        if time.monotonic() < self._next_query_at:
            return None
        interval = self._query_interval if self._stop_requested_at is None else following.LOOK_EACH
        self._next_query_at = time.monotonic() + interval
        try:
            state = SLURM.find_state(self.job)
        except UnreachableError as error:
            self._say(f"{error}; it is asked again", "unreachable")
            return None
        self.waits = state.phase != RUNNING
        if state.phase == WAITING:  # for the first time, or queued again after a node was lost
            (self.folder / BEGAN).unlink(missing_ok=True)
        if state.meaning and state.phase != ENDED:
            self._say(f"job {self.job.id} {state}", state.words)
        return state

    def _cancel_job(self) -> None:
        """Cancel the job. The first time, a running job is asked to save its state, as before its time limit."""
        asks_to_save = not self._next_cancel_at and not self.waits
        self._next_cancel_at = time.monotonic() + GRACE
        self._next_query_at = 0.0  # the next poll asks Slurm whether the job has ended
        try:
            if asks_to_save:
                SLURM.ask_to_end(self.job)
            else:
                SLURM.end_job(self.job)
        except JobError as error:
            self._say(f"{error}; it is tried again in {GRACE:.0f} s", "cancel")


def has_job(folder: Path) -> bool:
    """Whether a job of the trial in `folder` may have been submitted, and its outcome is not recorded yet."""
    return (folder / run_folder.SCRIPT).is_file()


def forget_job(folder: Path) -> None:
    """Remove the files of a job from the folder of its trial."""
    for name in (run_folder.SCRIPT, run_folder.NOTE, BEGAN, CODE, STOP_REQUEST):
        (folder / name).unlink(missing_ok=True)


@dataclass(frozen=True)
class Jobs:
    """Starts trials as jobs with the options `job_options`.

    Args:
        source: the user's folder, in which jobs are submitted.
        parallel: the number of concurrent jobs. The more jobs there are, the more rarely each job is queried.
        say: prints the first message of each kind; called with message and kind.
    """

    job_options: job_script.Slurm
    source: Path
    parallel: int
    say: Callable[..., None]

    def find_trial(self, folder: Path, rules: Rules) -> Trial | None:
        """The trial whose job a killed search has submitted; None if there is none. Raises JobError."""
        if not has_job(folder):
            return None
        # The id of the job: from the note of the search, else from the job itself, else from Slurm's queue. A full disk
        # leaves incomplete notes.
        job_id = ""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            job_id = run_folder.read_note(folder)[1].id
        if not job_id and (folder / BEGAN).is_file():
            job_id = (folder / BEGAN).read_text().strip()
        if not job_id:  # the search was killed while it submitted the job
            job_id = next(iter(SLURM.find_queued(folder / run_folder.SCRIPT)), "")
        if not job_id:
            return None
        return self._make_trial(folder, Job(job_id, str(folder)), rules, was_resumed=True)

    def start_trial(
        self, folder: Path, target: Sequence[str], variables: Mapping[str, str], rules: Rules, slot: Slot
    ) -> Trial:
        """Submit the job of a trial of `target`. Raises JobError: Slurm refused it."""
        forget_job(folder)
        # The name of the jobs of all trials, followed by the number of this trial, which ends the name of `folder`.
        job_options = replace(self.job_options, name=f"{self.job_options.name}-{folder.name.rpartition('-')[2]}")
        rules = replace(rules, saves_states=True)  # a job may be requeued, and then needs a saved state
        script_text = format_trial_job(job_options, target, folder, variables, rules)
        environment = remove_own_variables(task_environment.remove_job_variables(os.environ))
        job = SLURM.submit_script(script_text, folder, job_options, cwd=self.source, env=environment)
        return self._make_trial(folder, job, rules)

    def _make_trial(self, folder: Path, job: Job, rules: Rules, was_resumed: bool = False) -> Trial:
        # All jobs together are queried once in ASK_EACH seconds, but each before Slurm may forget its end.
        query_interval = min(following.ASK_EACH * self.parallel, FORGET_SECONDS / 2)
        return JobTrial(folder, job, replace(rules, saves_states=True), query_interval, self.say, was_resumed)
