"""A run that is watched, with its job: whether that waits in a queue, and may still begin or come back."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from matex_tf.deploy import command, kubernetes, run_folder
from matex_tf.deploy.job import ENDED, FORGOTTEN, STUCK, Job, JobError, State, UnreachableError
from matex_tf.deploy.kubectl import names
from matex_tf.monitor import picture, recording

ASK_EACH = 15.0  # seconds between two questions to the scheduler


@dataclass(frozen=True)
class Seen:
    """What is known of a run: its records, once it has any, and what its job is doing where that has none to run."""

    run: recording.Run | None
    waits: str
    is_over: bool


def find_run_folder(run: str, namespace: str = "") -> str:
    """The folder that `run` names: itself, or that of Slurm's job of this number, or of Kubernetes' job of this name.

    Raises:
        RecordingError: nobody knows of the job, or where its folder is, or this machine does not see it.
    """
    if os.path.isdir(run):
        return run
    if not (run.isascii() and run.isdigit()):
        if not names.is_name(run) or (shutil.which("kubectl") is None and not namespace):
            return run
        try:
            return kubernetes.find_records(Job(run, namespace=namespace))
        except JobError as error:
            raise recording.RecordingError(command.describe_failure(run, str(error))) from None
    try:
        does, job = command.find_job(run, "")
    except click.UsageError as error:
        raise recording.RecordingError(f"there is no folder {run}, nor a job: {error.message}") from None
    if not job.folder:
        try:
            words = f"job {run} {does.find_state(job)}"
        except JobError as error:
            words = str(error)
        raise recording.RecordingError(f"{words}\nThe folder of that run is not known here: name it, as runs/train-1")
    return job.folder


class JobWatch:
    """The run in `folder`. Its job's scheduler is asked only where no rank runs that could tell."""

    def __init__(self, folder: str):
        self._folder = folder
        self._state: State | None = None
        self._due = 0.0
        self._is_unknown = False
        self._does: Any = None  # no job
        self._job = Job("")
        try:
            self._does, self._job = command.find_job(folder, "")
        except click.UsageError:
            pass

    def look_at_run(self) -> Seen:
        """How far it is.

        Raises:
            RecordingError: nothing is recorded, nor will be; or this version does not read it.
        """
        try:
            found = recording.open_run(self._folder)
        except recording.NothingRecordedError:
            if self._does is None:
                raise
            if self._may_go_on():
                return Seen(None, f"{self._describe_job()}; no rank has written anything yet", False)
            why = "no rank has written anything there; one rank alone is not recorded"
            raise recording.RecordingError(f"{self._folder}: {why}. {self._describe_job()}") from None
        if not picture.has_ended(found):
            return Seen(found, "", False)
        may_come_back = picture.has_asked_again(found) and self._does is not None and self._may_go_on()
        if may_come_back and not self._is_unknown:
            return Seen(found, f"to be started again: {self._describe_job()}", False)
        return Seen(found, "", True)

    def _may_go_on(self) -> bool:
        """Whether the job may still begin, or come back."""
        if Path(self._folder, run_folder.EXIT_CODE).exists():
            return False
        if time.monotonic() >= self._due:
            try:
                self._state = self._does.find_state(self._job)
            except UnreachableError:
                pass  # it does not answer now
            except JobError:
                self._is_unknown = True  # there is no such scheduler on this host
            finally:
                self._due = time.monotonic() + ASK_EACH
        return self._state is None or self._state.phase not in (ENDED, FORGOTTEN, STUCK)

    def _describe_job(self) -> str:
        return f"{self._job.id} {self._state}" if self._state else f"{self._job.id} (nobody here tells its state)"
