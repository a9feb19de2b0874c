"""One trial: its resources, the lines that it has logged, and its outcome.

The script logs lines, JSON objects, into the file NOTED: the logs of each epoch of Keras' `fit`, and reported values.
Its saved states are files of the folder STATE, from which it continues after a pause or a stop. `Trial` is the
interface of running trials: processes of this machine (`process_trial`), or Slurm jobs (`job_trial`).

A search polls each trial until `poll` returns an `Outcome`. A trial has exit code 75 (EXIT_REQUEUE) if it was asked to
end: by its rung (it has paused), by the search, or from outside (it was stopped).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from matex_tf.deploy import run_folder
from matex_tf.runtime import temp_folders
from matex_tf.tune.objective import Objective, Point, drop_overwritten, drop_repeated
from matex_tf.world.exit_codes import EXIT_REQUEUE
from matex_tf.world.hosts.host_lists import Host

DONE, FAILED, STOPPED, PAUSED = "done", "failed", "stopped", "paused"
"""States of a trial that has ended: complete; failed; ended from outside, to be continued; paused at a rung."""
OUTPUT, NOTED, LOCK, PLACE, STATE = "output", "noted.jsonl", "lock", "place", "state"
"""Names in the folder of a trial: its printed output, logged lines, lock, working folder (PLACE) and saved states."""
GRACE = 20.0  # seconds that a trial has to end after it was asked to
_TAIL_LINES, _TAIL_BYTES = 10, 8192  # at most, of the end of the output in an outcome
_MAX_BYTES = 64 << 20  # of the output that is read


@dataclass(frozen=True)
class Slot:
    """The resources of one of several concurrent trials: CPUs and GPUs of this machine, or hosts."""

    cpus: tuple[int, ...] = ()  # (): all CPUs
    gpus: tuple[str, ...] = ()  # (): all GPUs
    hosts: tuple[Host, ...] = ()  # (): this machine, or the hosts that `matex run` finds
    part: str = ""  # the part of each host, such as "1/2", if trials share hosts; "": all of it


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a trial."""

    state: str  # DONE, FAILED, STOPPED or PAUSED
    value: float | None = None  # the objective; None if there is none
    kind: str = ""  # a short name of the reason of a failure: failures of the same kind are alike
    why: str = ""  # the explanation of a failure, or of a missing value
    tail: str = ""  # the end of the output
    seconds: float = 0.0  # the duration since the start; in a record, the sum over all starts of the trial
    curve: tuple[Point, ...] = field(default=(), compare=False)
    """The values of the objective in the course of the trial."""


@dataclass(frozen=True)
class Rules:
    """When a trial ends, and how it is judged."""

    objective: Objective
    limit: float = 0.0  # seconds; 0: no limit
    pause: int = 0
    """The next rung: the epochs of `fit`, counted from the first start, after which the trial ends; 0: none."""
    saves_states: bool = False


class Trial(ABC):
    """A running trial, with a `folder` of its own (OUTPUT, NOTED, ...)."""

    waits = False  # whether the trial is still in a queue

    def __init__(self, folder: Path, rules: Rules):
        self.folder, self.rules = folder, rules
        self.lines: list[dict[str, Any]] = []  # all logged lines that have been read
        self._bytes_read = 0  # of the file of logged lines
        self._stop_requested_at: float | None = None  # when the trial was asked to end, by the monotonic clock
        self._stop_reason = ""  # why it was asked to end; "" if the search itself ends
        self.read_new_lines()  # lines of earlier starts
        self._states_before = self._list_states()  # saved by earlier starts

    @property
    @abstractmethod
    def seconds(self) -> float:
        """The seconds for which the trial has run."""

    @abstractmethod
    def _find_outcome(self) -> Outcome | None:
        """The outcome; None while it waits or runs."""

    @abstractmethod
    def _request_stop(self) -> None:
        """Ask the trial to end, for the first time."""

    @abstractmethod
    def _enforce_stop(self, waited_seconds: float) -> Outcome | None:
        """Called in each poll of a trial that was asked to end `waited_seconds` ago; may return its outcome."""

    def poll(self) -> Outcome | None:
        """The outcome; None while it waits or runs. A trial that exceeds its limit is asked to end."""
        outcome = self._find_outcome()
        if outcome is not None:
            return outcome
        if self._stop_requested_at is None and self.rules.limit and self.seconds > self.rules.limit:
            self.stop_trial(f"longer than {self.rules.limit:g} s")
        if self._stop_requested_at is None:
            return None
        return self._enforce_stop(time.monotonic() - self._stop_requested_at)

    def stop_trial(self, why: str) -> None:
        """Ask the trial to end. `why` is empty if the search itself ends."""
        if self._stop_requested_at is None:
            self._stop_requested_at, self._stop_reason = time.monotonic(), why
            self._request_stop()

    @property
    def epochs(self) -> int:
        """The number of epochs of Keras' `fit` that have ended."""
        # A line of `fit` names its call of `fit`; a line of a reported value does not.
        return sum("call" in line for line in drop_repeated(self.lines))

    @property
    def has_reached_rung(self) -> bool:
        """Whether as many epochs have ended as `Rules.pause` requires."""
        return 0 < self.rules.pause <= self.epochs

    def read_new_lines(self) -> None:
        """Add the lines that the trial has logged since the last call to `lines`."""
        path = self.folder / NOTED
        if not path.is_file():
            return
        with path.open("rb") as file:
            file.seek(self._bytes_read)
            new_bytes = file.read()
        complete_lines = new_bytes[: new_bytes.rfind(b"\n") + 1]
        self._bytes_read += len(complete_lines)
        self.lines += map(json.loads, complete_lines.splitlines())

    def judge_outcome(self, code: int, reason: str = "") -> Outcome:
        """The outcome of a trial that has ended with exit code `code`, from its output and its logged lines.

        `code` is negative for a signal. A `reason` is the text for a failure, if more is known than the exit code.
        """
        self.read_new_lines()
        seconds = self.seconds
        output = run_folder.read_tail(str(self.folder), _MAX_BYTES).decode(errors="replace")
        last_lines = [line for line in drop_overwritten(output[-_TAIL_BYTES:]).splitlines() if line.strip()]
        try:
            curve = tuple(self.rules.objective.read_curve(self.lines, output))
        except ValueError as error:
            curve, outcome = (), Outcome(state=FAILED, kind="objective", why=str(error))
        else:
            outcome = self._judge_curve(curve, code, reason)
        return replace(outcome, curve=curve, tail="\n".join(last_lines[-_TAIL_LINES:]), seconds=seconds)

    def _judge_curve(self, curve: Sequence[Point], code: int, reason: str) -> Outcome:
        """The outcome, without curve, output and seconds."""
        if self._stop_requested_at is not None:
            if not self._stop_reason:  # it ends because the search ends
                return Outcome(state=STOPPED)
            return Outcome(state=FAILED, kind="limit", why=self._stop_reason)
        objective = self.rules.objective
        if code == EXIT_REQUEUE and self._list_states() - self._states_before:  # this start has saved a state
            if not self.has_reached_rung:  # it was asked to end from outside
                return Outcome(state=STOPPED)
            if not curve:  # the objective is known only at the end of the trial, and rungs cannot judge it
                return Outcome(state=PAUSED, why=objective.explain_missing(self.lines))
            return self._judge_value(PAUSED, curve)
        if code or reason:
            reason = reason or (f"ended by signal {-code}" if code < 0 else f"exit code {code}")
            return Outcome(state=FAILED, kind=reason, why=reason)
        if not curve:
            return Outcome(state=FAILED, kind="objective", why=objective.explain_missing(self.lines))
        return self._judge_value(DONE, curve)

    def _judge_value(self, state: str, curve: Sequence[Point]) -> Outcome:
        """The outcome `state` with the value of `curve`; FAILED if the value is not finite."""
        value = self.rules.objective.choose_value(curve)
        if math.isfinite(value):
            return Outcome(state=state, value=value)
        return Outcome(state=FAILED, kind="number", why=f"{self.rules.objective.name} is {value}")

    def _list_states(self) -> set[tuple[str, int]]:
        """The names of the saved states (within or at the end of a call of `fit`), with the times of their files."""
        files = self.folder.glob(f"{STATE}/*") if self.rules.saves_states else ()
        return {(file.name, file.stat().st_mtime_ns) for file in files if file.name.startswith(("state-", "end-"))}


@contextlib.contextmanager
def hold_folder(
    folder: Path, patience: float | None = None, warn: Callable[[OSError], None] | None = None
) -> Iterator[int]:
    """Context that locks the folder of a trial or of a search. Yields the lock's descriptor.

    The first process of a trial inherits the descriptor. So the folder stays locked until that process has ended, even
    if the search is killed. If the file system has no locks, the context begins without one, and `warn` is called.

    Raises:
        TimeoutError: another process still has the lock after `patience` seconds (None: GRACE).
    """
    deadline = time.monotonic() + (GRACE if patience is None else patience)
    while (descriptor := temp_folders.hold_file(str(folder / LOCK), tell=warn)) is None:
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{folder}: the trial that was started there before still runs")
        time.sleep(0.1)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


_OWN_VARIABLES = (
    "MATEX_PROOF", "MATEX_STATE", "MATEX_PAUSE", "MATEX_RECORD", "MATEX_TRIAL", "MATEX_CHECK", "MATEX_PLAN",
    "MATEX_TIMELINE", "MATEX_LOG_DIR",
)  # fmt: skip


def remove_own_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without the settings of a single run, which do not apply to trials."""
    return {name: value for name, value in environment.items() if name not in _OWN_VARIABLES}


def make_variables(folder: Path, variables: Mapping[str, str], rules: Rules) -> dict[str, str]:
    """The environment variables of a trial in `folder`: the `variables` of its configuration, and its settings."""
    state_variables = {"MATEX_STATE": str(folder / STATE), "MATEX_PAUSE": str(rules.pause)}
    return {**variables, "MATEX_TRIAL": str(folder / NOTED), **(state_variables if rules.saves_states else {})}
