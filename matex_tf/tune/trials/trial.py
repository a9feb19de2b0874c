"""One trial: its resources, the lines that it has logged, and its outcome.

`Trial` is the interface of running trials: processes of this machine (`process_trial`), or Slurm jobs (`job_trial`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matex_tf.tune.objective import Objective, Point, drop_overwritten, drop_repeated
from matex_tf.world import file_locks
from matex_tf.world.exit_codes import EXIT_REQUEUE
from matex_tf.world.hosts.host_lists import Host

DONE, FAILED, STOPPED, PAUSED = "done", "failed", "stopped", "paused"
"""Outcomes: complete; failed; asked to end from outside, to be continued; paused at a rung."""
OUTPUT, NOTED, LOCK, PLACE, STATE = "output", "noted.jsonl", "lock", "place", "state"
"""In the folder of a trial: its printed output, its logged lines, its lock, its working folder, its saved state."""
GRACE = 20.0
"""Seconds that a trial has to end after it was asked to."""
_TAIL_LINES, _TAIL_BYTES = 10, 8192
_MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Slot:
    """The resources of a trial: CPUs and GPUs of this machine, or hosts; () if they are not distributed.

    If trials share hosts, `part` is the part of each host, such as "1/2"; "" is the whole host.
    """

    cpus: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    hosts: tuple[Host, ...] = ()
    part: str = ""


WHOLE = Slot()


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial. `why` explains a failure; failures with the same short `kind` are alike.

    `tail` is the end of its output.
    """

    state: str
    value: float = math.nan
    curve: tuple[Point, ...] = ()
    kind: str = ""
    why: str = ""
    tail: str = ""
    seconds: float = 0.0


class Trial(ABC):
    """A running trial with its `folder`, which has the files `output` and `noted.jsonl`, and `place`, where it runs.

    With `pause`, the trial saves its state and continues from a saved one. It pauses after `pause` epochs of `fit`,
    counted from its first start; 0: it does not pause. None: no state is saved.
    """

    waits = False
    """Whether the trial is still in a queue."""

    def __init__(self, folder: Path, objective: Objective, limit: float = 0.0, pause: int | None = None):
        self.folder, self.objective, self.pause = folder, objective, pause
        self.limit = limit or math.inf
        self.lines: list[dict[str, Any]] = []
        self._bytes_read = 0  # of the logged lines
        self._stop_requested_at: float | None = None  # the time at which the trial was asked to end
        self._stop_reason = ""  # "" if the search itself ends
        self.read_new_lines()
        self._states_before = self._list_states()

    @property
    @abstractmethod
    def seconds(self) -> float:
        """The seconds for which the trial has run."""

    @abstractmethod
    def poll(self) -> Outcome | None:
        """The outcome; None while it runs. A trial that exceeds its limit is asked to end."""

    @abstractmethod
    def stop_trial(self, why: str) -> None:
        """Ask the trial to end. `why` is empty if the search itself ends."""

    @property
    def epochs(self) -> int:
        """The number of epochs of Keras' `fit` that have ended."""
        return sum("call" in line for line in drop_repeated(self.lines))

    def read_new_lines(self) -> list[dict[str, Any]]:
        """The lines that the trial has logged since the last call."""
        path = self.folder / NOTED
        if not path.is_file():
            return []
        with path.open("rb") as file:
            file.seek(self._bytes_read)
            new_bytes = file.read()
        complete = new_bytes[: new_bytes.rfind(b"\n") + 1]
        self._bytes_read += len(complete)
        new_lines = [json.loads(line) for line in complete.splitlines()]
        self.lines += new_lines
        return new_lines

    def judge_outcome(self, code: int, reason: str = "") -> Outcome:
        """The outcome of a trial that has ended with exit code `code`, or for a more precise `reason`.

        Exit code 75 (EXIT_REQUEUE) means that the trial was asked to end, by its pause or from outside.
        """
        self.read_new_lines()
        seconds = self.seconds
        output = read_output(self.folder / OUTPUT)
        tail = "\n".join(
            deque((line for line in drop_overwritten(output[-_TAIL_BYTES:]).splitlines() if line.strip()), _TAIL_LINES)
        )

        def make_failed(kind: str, reason: str, curve: Sequence[Point] = ()) -> Outcome:
            return Outcome(FAILED, math.nan, tuple(curve), kind, reason, tail, seconds)

        def make_judged(state: str, curve: Sequence[Point]) -> Outcome:
            value = self.objective.choose_value(curve)
            if not math.isfinite(value):
                return make_failed("number", f"{self.objective.name} is {value}", curve)
            return Outcome(state, value, tuple(curve), "", "", tail, seconds)

        try:
            curve = self.objective.read_curve(self.lines, output)
        except ValueError as error:
            return make_failed("objective", str(error))
        if self._stop_requested_at is not None and not self._stop_reason:
            return Outcome(STOPPED, math.nan, tuple(curve), "", "", tail, seconds)
        if self._stop_requested_at is not None:
            return make_failed("limit", self._stop_reason, curve)
        if code == EXIT_REQUEUE and self._has_saved_state():
            if not 0 < (self.pause or 0) <= self.epochs:  # it was asked to end from outside
                return Outcome(STOPPED, math.nan, tuple(curve), "", "", tail, seconds)
            if not curve:
                return Outcome(PAUSED, math.nan, (), "", self.objective.explain_missing(self.lines), tail, seconds)
            return make_judged(PAUSED, curve)
        if code or reason:
            reason = reason or (f"ended by signal {-code}" if code < 0 else f"exit code {code}")
            return make_failed(reason, reason, curve)
        if not curve:
            return make_failed("objective", self.objective.explain_missing(self.lines))
        return make_judged(DONE, curve)

    def _has_saved_state(self) -> bool:
        """Whether the trial has saved a state since its start, from which it can continue."""
        return bool(self._list_states() - self._states_before)

    def _list_states(self) -> set[tuple[str, int]]:
        """The names of the saved states, with the times of their files."""
        files = self.folder.glob(f"{STATE}/*") if self.pause is not None else ()
        return {(file.name, file.stat().st_mtime_ns) for file in files if file.name.startswith(("state-", "end-"))}


@contextlib.contextmanager
def hold_folder(
    folder: Path, patience: float | None = None, warn: Callable[[OSError], None] | None = None
) -> Iterator[int]:
    """Context that locks the folder of a trial or of a search. Yields a descriptor, for the trial to inherit.

    If the file system has no locks, the context begins without one, and `warn` is called with the error.

    Raises:
        TimeoutError: the lock was still held after `patience` seconds, by default those that a trial has to end.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + (GRACE if patience is None else patience)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"{folder}: the trial that was started there before still runs") from None
                time.sleep(0.1)
            except OSError as error:
                if not file_locks.lacks_locks(error):
                    raise
                if warn is not None:
                    warn(error)
                break
        yield descriptor
    finally:
        os.close(descriptor)


_OWN_VARIABLES = (
    "MATEX_PROOF", "MATEX_STATE", "MATEX_PAUSE", "MATEX_RECORD", "MATEX_TRIAL", "MATEX_CHECK", "MATEX_PLAN",
    "MATEX_TIMELINE",
)  # fmt: skip


def remove_own_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without the settings of a single run, which do not apply to trials."""
    return {name: value for name, value in environment.items() if name not in _OWN_VARIABLES}


def make_variables(folder: Path, variables: Mapping[str, str], pause: int | None) -> dict[str, str]:
    """The environment variables of a trial in `folder`: the `variables` of its configuration, and its settings."""
    state_variables = {"MATEX_STATE": str(folder / STATE), "MATEX_PAUSE": str(pause)} if pause is not None else {}
    return {**variables, "MATEX_TRIAL": str(folder / NOTED), **state_variables}


def read_output(path: Path) -> str:
    """The printed output of a trial, at most its last 64 MiB; "" if it has not begun."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - _MAX_BYTES, 0))
        return file.read().decode(errors="replace")
