"""What is asked of a cluster, what it says of a job, and how it refuses one."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PATIENCE = 60.0  # seconds for one answer of a scheduler
WAITING, RUNNING, ENDED, FORGOTTEN = "waiting", "running", "ended", "forgotten"
STUCK = "stuck"  # it waits for what does not come by itself
EXIT_UNKNOWN = 1  # of a job that did not end well, where the scheduler has no exit code


class JobError(Exception):
    """A cluster did not do what was asked: its own words, what they mean, what to do."""


class UnreachableError(JobError):
    """The scheduler gave no answer; it may give one later."""


@dataclass(frozen=True)
class Job:
    """A job that was submitted: `id` is the scheduler's name of it, `folder` that of its run ("" if not known)."""

    id: str
    folder: str = ""
    namespace: str = ""


@dataclass(frozen=True)
class State:
    """Where a job is: one of the phases above, and the scheduler's `words`, with what they mean where that is known.

    `code` is the exit code of one that has ended. `seconds` are those since it was submitted: until now, or its end;
    None where nobody tells. `starts` is what the scheduler calls those of which it has had several. `holds`: it has
    ended, and still holds nodes.
    """

    phase: str
    words: str
    starts_again: int = 0
    code: int | None = None
    means: str = ""
    seconds: float | None = None
    starts: str = "starts"
    holds: bool = False

    def __str__(self) -> str:
        if self.phase == ENDED:
            again = f" in {self.starts_again + 1} {self.starts}" if self.starts_again else ""
            again = f" after {format_duration(self.seconds)}{again}" if self.seconds is not None else again
        else:
            again = f", requeued ({self.starts_again})" if self.starts_again else ""
        code = f", exit code {self.code}" if self.code is not None else ""
        return f"{self.words}{again}{code}" + (f": {self.means}" if self.means else "")


def format_duration(seconds: float) -> str:
    """Hours, minutes and seconds, as time limits are written."""
    minutes, rest = divmod(max(round(seconds), 0), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def format_count(count: int, of: str) -> str:
    """So many of them, in words."""
    return f"{count} {of}" if count == 1 else f"{count} {of}s"


def cancel_job(does: Any, job: Job) -> None:
    """End the job, or take it out of the queue of the cluster that `does` it.

    Raises:
        JobError: it has ended already, or the cluster refuses.
    """
    if (now := does.find_state(job)).phase in (ENDED, FORGOTTEN) and not now.holds:
        raise JobError(f"{job.id} {now}: there is nothing to cancel")
    does.cancel_job(job)


def run_scheduler(
    words: Sequence[str], get: str, given: str | None = None, **where: Any
) -> subprocess.CompletedProcess[str]:
    """The answer of a scheduler's command. `get` says where one has it from, `where` how it is started.

    Raises:
        JobError: there is no such command.
        UnreachableError: it did not answer in time.
    """
    try:
        return subprocess.run(
            words,
            input=given,
            stdin=None if given is not None else subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=PATIENCE,
            **where,
        )
    except FileNotFoundError:
        raise JobError(f"there is no {words[0]} on this machine. {get}") from None
    except subprocess.TimeoutExpired:
        raise UnreachableError(f"{shlex.join(words)} gave no answer in {PATIENCE:.0f} s") from None
