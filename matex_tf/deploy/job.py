"""Jobs of a cluster: identity, state and errors, independent of the scheduler."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PATIENCE = 60.0  # seconds that a scheduler's command may take
WAITING, RUNNING, ENDED = "waiting", "running", "ended"
FORGOTTEN = "forgotten"  # the scheduler does not know the job, or no longer
STUCK = "stuck"  # the job waits for a condition that does not arise by itself
EXIT_UNKNOWN = 1  # the exit code for a failed job whose scheduler reports none


class JobError(Exception):
    """A cluster refused a request. The message quotes the cluster, explains the cause and says what to do."""


class UnreachableError(JobError):
    """The scheduler did not answer. A later query may succeed."""


@dataclass(frozen=True)
class Job:
    """A submitted job. `id` is the scheduler's id; `folder` is the folder of the run (`run_folder`), "" if unknown."""

    id: str
    folder: str = ""
    namespace: str = ""


@dataclass(frozen=True)
class State:
    """The state of a job."""

    phase: str  # WAITING, RUNNING, ENDED, FORGOTTEN or STUCK
    words: str  # the scheduler's own text for the state
    restarts: int = 0  # the number of restarts by the scheduler
    code: int | None = None  # the exit code of an ended job
    meaning: str = ""  # of `words`; "" if it is unknown or evident
    seconds: float | None = None  # the time from submission until now, or until the end
    starts_noun: str = "starts"  # what the scheduler calls the starts of a job, in the plural, such as "launchers"
    holds_nodes: bool = False  # the job has ended and still holds nodes (Kubernetes), until it is cancelled

    def __str__(self) -> str:
        text = self.words
        if self.phase == ENDED and self.seconds is not None:
            text += f" after {format_duration(self.seconds)}"
        if self.restarts:  # such as "ENDED in 3 starts", or "RUNNING, requeued (2)"
            is_over = self.phase == ENDED
            text += f" in {self.restarts + 1} {self.starts_noun}" if is_over else f", requeued ({self.restarts})"
        if self.code is not None:
            text += f", exit code {self.code}"
        return f"{text}: {self.meaning}" if self.meaning else text


def format_duration(seconds: float) -> str:
    """Format a duration as hours:minutes:seconds, as in time limits."""
    minutes, remaining_seconds = divmod(max(round(seconds), 0), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{remaining_seconds:02}"


def format_count(count: int, noun: str) -> str:
    """A count with its noun, in singular or plural."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def run_scheduler(
    command: Sequence[str], advice: str, standard_input: str = "", **process_options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a scheduler's command.

    Args:
        advice: what the user can do if the command does not exist.
        standard_input: the text that the command reads.
        process_options: further arguments of `subprocess.run`.

    Raises:
        JobError: the command does not exist.
        UnreachableError: the command did not finish in time.
    """
    try:
        return subprocess.run(
            command, input=standard_input, capture_output=True, encoding="utf-8", errors="surrogateescape",
            timeout=PATIENCE, **process_options,
        )  # fmt: skip
    except FileNotFoundError:
        raise JobError(f"there is no {command[0]} on this machine. {advice}") from None
    except subprocess.TimeoutExpired:
        raise UnreachableError(f"{shlex.join(command)} gave no answer in {PATIENCE:.0f} s") from None
