"""Trials that are jobs of Slurm, each of its own. They outlive the search, which finds them again.

A job tells by files of its trial's folder that it runs, and how it has ended; Slurm is asked for what they do not tell.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from matex_tf.deploy import following, run_folder, slurm
from matex_tf.deploy.job import ENDED, FORGOTTEN, RUNNING, STUCK, WAITING, Job, JobError, State, UnreachableError
from matex_tf.deploy.sbatch import job_script
from matex_tf.tune.objective import Objective
from matex_tf.tune.trials.trial import (
    GRACE,
    OUTPUT,
    PLACE,
    STOPPED,
    Outcome,
    Slot,
    Trial,
    make_variables,
    remove_own_variables,
)
from matex_tf.world import task_environment
from matex_tf.world.exit_codes import EXIT_REQUEUE

FORGETS = 300.0
"""Seconds after which Slurm forgets a job that has ended (MinJobAge), unless told otherwise."""
BEGAN, CODE, TOLD = "began", "exit-code", "told"
_OUTSIDE = {"TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "REVOKED"}
"""Ends of jobs that are not their trials': these go on from their states."""


def format_trial_job(
    asked: job_script.Slurm, target: Sequence[str], folder: Path, variables: Mapping[str, str], pause: int
) -> str:
    """The script of the job that runs a trial of `target`, whose `folder` is absolute."""
    told = make_variables(folder, variables, pause)
    before = [
        *(f"export {name}={shlex.quote(value)}" for name, value in told.items()),
        f'echo "$SLURM_JOB_ID" > "$run_folder/{BEGAN}"',
        f'cd "$run_folder/{PLACE}" || exit {os.EX_CONFIG}',
    ]
    return job_script.format_script(
        asked, asked.make_command(target), str(folder), "".join(f"{one}\n" for one in before)
    )


class JobTrial(Trial):
    """A trial that is `job`, of which Slurm is asked once in `ask_each` seconds.

    With `found` the job was submitted by a search that was killed since, which may have told it to end.
    """

    def __init__(
        self, folder: Path, job: Job, objective: Objective, limit: float, pause: int | None, ask_each: float,
        say: Callable[[str, str], None], found: bool = False,
    ):  # fmt: skip
        super().__init__(folder, objective, limit, pause)
        self.job, self._ask_each, self._say = job, ask_each, say
        self.waits = True
        self._next_ask = time.monotonic() + following.ASK_EACH
        self._next_cancel = 0.0
        if found:
            self._before = set()
            if (folder / TOLD).is_file():
                self._told, self._why = time.monotonic(), (folder / TOLD).read_text()

    @property
    def seconds(self) -> float:
        """For how long it has run, by the clock of the file system."""
        if not (self.folder / BEGAN).is_file():
            return 0.0
        code = self.folder / CODE
        ended = code.stat().st_mtime if code.is_file() else time.time()
        return max(ended - (self.folder / BEGAN).stat().st_mtime, 0.0)

    def poll(self) -> Outcome | None:
        """What became of it; None while it waits or runs. One that is over its time is told to end."""
        self.waits = not (self.folder / BEGAN).is_file()
        outcome = self._find_outcome()
        if outcome is not None:
            if outcome.state == STOPPED:  # it is submitted again, once the search goes on
                forget_job(self.folder)
            return outcome
        if self._told is None and self.seconds > self.limit:
            self.stop_trial(f"longer than {self.limit:g} s")
        if self._told is not None and time.monotonic() >= self._next_cancel:
            if not self._why and time.monotonic() - self._told > 3 * GRACE:
                self._say(self.job.id, f"job {self.job.id} may still run: scancel {self.job.id}")
                return Outcome(STOPPED, seconds=self.seconds)
            self._cancel_job()
        return None

    def stop_trial(self, why: str) -> None:
        """Tell it to end: `why` is empty where the search itself is to end. At the next look it is told."""
        if self._told is None:
            self._told, self._why = time.monotonic(), why
            (self.folder / TOLD).write_text(why)

    def _find_outcome(self) -> Outcome | None:
        code = read_exit_code(self.folder)
        if code is not None:
            return self.judge_outcome(code, "time over, no progress" if code == EXIT_REQUEUE else "")
        now = self._ask_state()
        if now is not None and now.phase == STUCK:
            self._cancel_job()
            return self.judge_outcome(1, f"its job {now}")
        if now is None or now.phase not in (ENDED, FORGOTTEN):
            return None
        code = read_exit_code(self.folder)  # it may have been noted since
        return self._judge_state(now) if code is None else self.judge_outcome(code)

    def _judge_state(self, now: State) -> Outcome:
        """What became of it, of which Slurm alone knows how it ended, if anybody does."""
        if now.phase == FORGOTTEN:  # what a node or a time limit ends is queued again: it was cancelled
            return self.judge_outcome(1, f"its job {now.words}")
        if now.words in _OUTSIDE:
            return self.judge_outcome(EXIT_REQUEUE, now.words)
        if now.words == "FAILED" and not (self.folder / OUTPUT).is_file():
            return self.judge_outcome(1, f"no output: does the job's node see {self.folder.parent}?")
        return self.judge_outcome(now.code or 0, "" if now.words in ("COMPLETED", "FAILED") else now.words)

    def _ask_state(self) -> State | None:
        if time.monotonic() < self._next_ask:
            return None
        self._next_ask = time.monotonic() + (self._ask_each if self._told is None else following.LOOK_EACH)
        try:
            now = slurm.find_state(self.job)
        except UnreachableError as error:
            self._say("unreachable", f"{error}; it is asked again")
            return None
        self.waits = now.phase != RUNNING
        if now.phase == WAITING:  # also again, after a node was lost
            (self.folder / BEGAN).unlink(missing_ok=True)
        if now.means:
            self._say(now.words, f"job {self.job.id} {now}")
        return now

    def _cancel_job(self) -> None:
        """At first one that runs is asked to keep its state, as before its time limit."""
        asks = not self._next_cancel and not self.waits
        self._next_cancel = time.monotonic() + GRACE
        self._next_ask = 0.0
        try:
            slurm.ask_to_end(self.job) if asks else slurm.cancel_job(self.job)
        except JobError as error:
            self._say("cancel", f"{error}; it is tried again in {GRACE:.0f} s")


def read_exit_code(folder: Path) -> int | None:
    """How the job there has ended; None where it has not, or could not say so."""
    path = folder / CODE
    text = path.read_text() if path.is_file() else ""
    return int(text) if text.endswith("\n") else None


def has_job(folder: Path) -> bool:
    """Whether a job of the trial there was submitted, or nobody knows, and what became of it is not written down."""
    return (folder / slurm.SCRIPT).is_file()


def forget_job(folder: Path) -> None:
    """Remove what tells of a job in the folder of its trial."""
    for name in (slurm.SCRIPT, run_folder.NOTE, BEGAN, CODE, TOLD):
        (folder / name).unlink(missing_ok=True)


@dataclass(frozen=True)
class Jobs:
    """Starts trials as jobs, of which each takes what is `asked`.

    Args:
        source: the folder in which jobs are submitted: the user's.
        parallel: how many there are at once; Slurm is asked for one in each interval, however many they are.
        say: is told of a kind what is said to people, once.
    """

    asked: job_script.Slurm
    source: Path
    parallel: int
    say: Callable[[str, str], None]

    def find_trial(self, folder: Path, objective: Objective, limit: float, pause: int | None) -> Trial | None:
        """The trial whose job a search that was killed has submitted. Raises JobError where nobody knows."""
        if not has_job(folder):
            return None
        number = run_folder.read_note(folder)[1].id if (folder / run_folder.NOTE).is_file() else ""
        if not number and (folder / BEGAN).is_file():
            number = (folder / BEGAN).read_text().strip()
        if not number:  # killed while it submitted it
            number = next(iter(slurm.find_queued(folder / slurm.SCRIPT)), "")
        return self._make_trial(folder, Job(number, str(folder)), objective, limit, pause, True) if number else None

    def start_trial(
        self, folder: Path, target: Sequence[str], variables: Mapping[str, str], objective: Objective, slot: Slot,
        limit: float, pause: int | None,
    ) -> Trial:  # fmt: skip
        """Submit the job of a trial of `target`. Raises JobError: Slurm refused it."""
        forget_job(folder)
        asked = replace(self.asked, name=f"{self.asked.name}-{folder.name.rpartition('-')[2]}")
        text = format_trial_job(asked, target, folder, variables, pause or 0)
        environment = remove_own_variables(task_environment.remove_job_variables(os.environ))
        job = slurm.submit_script(text, folder, asked, cwd=self.source, env=environment)
        return self._make_trial(folder, job, objective, limit, pause)

    def _make_trial(
        self, folder: Path, job: Job, objective: Objective, limit: float, pause: int | None, found: bool = False
    ) -> Trial:
        each = min(following.ASK_EACH * self.parallel, FORGETS / 2)
        return JobTrial(folder, job, objective, limit, pause or 0, each, self.say, found)
