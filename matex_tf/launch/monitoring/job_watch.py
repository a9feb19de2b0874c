"""A run as `matex top` watches it: the records of its ranks, and the state of its job.

A run may be a job of a cluster. Then a run without ranks is not over: its job may be queued, or about to be restarted.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from matex_tf.deploy import command, run_folder
from matex_tf.deploy.cluster import Cluster
from matex_tf.deploy.job import ENDED, FORGOTTEN, STUCK, Job, JobError, State, UnreachableError
from matex_tf.deploy.kubectl import mpijob
from matex_tf.monitor import picture, recording

QUERY_INTERVAL = 15.0  # seconds between queries of the scheduler


@dataclass(frozen=True)
class WatchedState:
    """The known state of a run."""

    run: recording.Run | None  # the records of the last start; None if there are none yet
    job_text: str  # why no rank runs, if the job is queued or to be restarted; else ""
    is_over: bool  # no rank runs, and none will start


def find_run_folder(run: str, namespace: str = "") -> str:
    """The folder that `run` names: a folder itself, a Slurm job number, or a Kubernetes job name.

    Raises:
        RecordingError: the job or its folder is unknown, or this machine does not see the folder.
    """
    is_number = run.isascii() and run.isdigit()
    may_be_kubernetes = mpijob.is_name(run) and (namespace or shutil.which("kubectl") is not None)
    if os.path.isdir(run) or not (is_number or may_be_kubernetes):
        return run  # if the folder does not exist, the reader of its records says so
    try:
        cluster, job = command.find_job(run, namespace)
        return cluster.find_records(job)
    except click.UsageError as error:
        raise recording.RecordingError(f"there is no folder {run}, nor a job: {error.message}") from None
    except JobError as error:
        raise recording.RecordingError(command.describe_failure(run, str(error))) from None


class JobWatch:
    """The run in `folder`. The scheduler is queried only if no rank runs."""

    def __init__(self, folder: str):
        self._folder = folder
        self._state: State | None = None  # the last answer of the scheduler
        self._next_query_at = 0.0  # seconds of time.monotonic
        self._is_scheduler_absent = False  # this host cannot query the scheduler
        self._cluster: Cluster[Any] | None  # of the job; None: the run is no job
        try:
            self._cluster, self._job = command.find_job(folder, "")
        except click.UsageError:  # `folder` belongs to no job
            self._cluster, self._job = None, Job("")

    def look_at_run(self) -> WatchedState:
        """Read the state of the run, which is one of four:

        1. There are no records yet, but the job may still start: `job_text` tells its state.
        2. Ranks run, or `matex run` goes on without them, for example to restart them.
        3. The ranks have ended in order to be restarted, and the job may come back: `job_text` tells its state.
        4. The run is over.

        Raises:
            RecordingError: there are no records and none will come, or this version cannot read them.
        """
        try:
            records = recording.open_run(self._folder)
        except recording.NothingRecordedError:
            if self._cluster is None:
                raise
            if self._may_go_on():
                return WatchedState(None, f"{self._describe_job()}; no rank has written anything yet", False)
            reason = "no rank has written records; a run of one rank is not recorded"
            raise recording.RecordingError(f"{self._folder}: {reason}. {self._describe_job()}") from None
        if not picture.has_ended(records):
            return WatchedState(records, "", False)
        may_come_back = picture.has_ended_to_restart(records) and self._may_go_on()
        if may_come_back and not self._is_scheduler_absent:
            return WatchedState(records, f"to be restarted: {self._describe_job()}", False)
        return WatchedState(records, "", True)

    def _may_go_on(self) -> bool:
        """Whether the job may still start, or be restarted."""
        if self._cluster is None or Path(self._folder, run_folder.EXIT_CODE).exists():  # the job script has ended
            return False
        if time.monotonic() >= self._next_query_at:
            try:
                self._state = self._cluster.find_state(self._job)
            except UnreachableError:
                pass  # the scheduler does not answer now
            except JobError:  # such as a missing command
                self._is_scheduler_absent = True
            finally:
                self._next_query_at = time.monotonic() + QUERY_INTERVAL
        # STUCK: the job waits for a condition that does not arise by itself. Without an answer, it may still start.
        return self._state is None or self._state.phase not in (ENDED, FORGOTTEN, STUCK)

    def _describe_job(self) -> str:
        return f"{self._job.id} {self._state}" if self._state else f"{self._job.id} (state unknown on this host)"
