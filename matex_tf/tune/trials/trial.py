"""One trial: what it has for itself, what it has noted, and what became of it."""

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
OUTPUT, NOTED, LOCK, PLACE, STATE = "output", "noted.jsonl", "lock", "place", "state"
GRACE = 20.0
"""Seconds that a trial has to end once it is told to."""
_LINES, _TAIL = 10, 8192
_MOST_READ = 64 << 20


@dataclass(frozen=True)
class Slot:
    """What a trial has for itself: CPUs of this machine, GPUs by their names; () where they are not dealt out.

    Or hosts, and where trials share them which `part` of each, as "1/2"; "" is the whole.
    """

    cpus: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    hosts: tuple[Host, ...] = ()
    part: str = ""


WHOLE = Slot()


@dataclass(frozen=True)
class Outcome:
    """What became of a trial. `kind` is in short what `why` says: by it failures are found alike."""

    state: str
    value: float = math.nan
    curve: tuple[Point, ...] = ()
    kind: str = ""
    why: str = ""
    tail: str = ""
    seconds: float = 0.0


class Trial(ABC):
    """A trial that runs. `folder` is its own: the files `output` and `noted.jsonl`, and `place`, in which it runs.

    With `pause`, not None, its state is kept in `state`, from which it goes on if there is one, and it pauses once so
    many epochs of `fit` have ended since it was first started; 0: it does not.
    """

    waits = False
    """Whether it stands in a queue yet."""

    def __init__(self, folder: Path, objective: Objective, limit: float = 0.0, pause: int | None = None):
        self.folder, self.objective, self.pause = folder, objective, pause
        self.limit = limit or math.inf
        self.lines: list[dict[str, Any]] = []
        self._read = 0
        self._told: float | None = None  # when it was told to end
        self._why = ""
        self.read_new_lines()
        self._before = self._list_states()

    @property
    @abstractmethod
    def seconds(self) -> float:
        """For how long it has run."""

    @abstractmethod
    def poll(self) -> Outcome | None:
        """What became of it; None while it runs. One that is over its time is told to end."""

    @abstractmethod
    def stop_trial(self, why: str) -> None:
        """Tell it to end: `why` is empty where the search itself is to end."""

    @property
    def epochs(self) -> int:
        """How many epochs of Keras' `fit` it has made."""
        return sum("call" in line for line in drop_repeated(self.lines))

    def read_new_lines(self) -> list[dict[str, Any]]:
        """What it has noted since the last look."""
        path = self.folder / NOTED
        if not path.is_file():
            return []
        with path.open("rb") as file:
            file.seek(self._read)
            piece = file.read()
        whole = piece[: piece.rfind(b"\n") + 1]
        self._read += len(whole)
        new = [json.loads(line) for line in whole.splitlines()]
        self.lines += new
        return new

    def judge_outcome(self, code: int, how: str = "") -> Outcome:
        """What became of it, which has ended with `code`; `how` says more than that. With 75 it was asked to end."""
        self.read_new_lines()
        seconds = self.seconds
        output = read_output(self.folder / OUTPUT)
        tail = "\n".join(
            deque((line for line in drop_overwritten(output[-_TAIL:]).splitlines() if line.strip()), _LINES)
        )

        def make_failed(kind: str, why: str, curve: Sequence[Point] = ()) -> Outcome:
            return Outcome(FAILED, math.nan, tuple(curve), kind, why, tail, seconds)

        def make_judged(state: str, curve: Sequence[Point]) -> Outcome:
            value = self.objective.choose_value(curve)
            if not math.isfinite(value):
                return make_failed("number", f"{self.objective.name} is {value}", curve)
            return Outcome(state, value, tuple(curve), "", "", tail, seconds)

        try:
            curve = self.objective.read_curve(self.lines, output)
        except ValueError as error:
            return make_failed("objective", str(error))
        if self._told is not None and not self._why:
            return Outcome(STOPPED, math.nan, tuple(curve), "", "", tail, seconds)
        if self._told is not None:
            return make_failed("limit", self._why, curve)
        if code == EXIT_REQUEUE and self._has_gone_on():
            if not 0 < (self.pause or 0) <= self.epochs:  # somebody else has asked it to end
                return Outcome(STOPPED, math.nan, tuple(curve), "", "", tail, seconds)
            if not curve:
                return Outcome(PAUSED, math.nan, (), "", self.objective.explain_missing(self.lines), tail, seconds)
            return make_judged(PAUSED, curve)
        if code or how:
            how = how or (f"ended by signal {-code}" if code < 0 else f"exit code {code}")
            return make_failed(how, how, curve)
        if not curve:
            return make_failed("objective", self.objective.explain_missing(self.lines))
        return make_judged(DONE, curve)

    def _has_gone_on(self) -> bool:
        """Whether it has kept a state since it was started, from which it can go on."""
        return bool(self._list_states() - self._before)

    def _list_states(self) -> set[tuple[str, int]]:
        """The states that are kept, with the times of their files."""
        found = self.folder.glob(f"{STATE}/*") if self.pause is not None else ()
        return {(one.name, one.stat().st_mtime_ns) for one in found if one.name.startswith(("state-", "end-"))}


@contextlib.contextmanager
def hold_folder(
    folder: Path, patience: float | None = None, tell: Callable[[OSError], None] | None = None
) -> Iterator[int]:
    """A lock on the folder of a trial, for it to inherit, or of a search. Until it is gone, another cannot be had.

    A file system without locks gives it to all; `tell` is given its error.

    Raises:
        TimeoutError: after `patience` seconds, or those that a trial has to end, the one that was started there before
            still runs.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        until = time.monotonic() + (GRACE if patience is None else patience)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise TimeoutError(f"{folder}: the trial that was started there before still runs") from None
                time.sleep(0.1)
            except OSError as error:
                if not file_locks.lacks_locks(error):
                    raise
                if tell is not None:
                    tell(error)
                break
        yield descriptor
    finally:
        os.close(descriptor)


_OWN = (
    "MATEX_PROOF", "MATEX_STATE", "MATEX_PAUSE", "MATEX_RECORD", "MATEX_TRIAL", "MATEX_CHECK", "MATEX_PLAN",
    "MATEX_TIMELINE",
)  # fmt: skip


def remove_own_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` less what is said to one run of ours, which is none of the trials'."""
    return {name: value for name, value in environment.items() if name not in _OWN}


def make_variables(folder: Path, variables: Mapping[str, str], pause: int | None) -> dict[str, str]:
    """The variables of the environment of a trial in `folder`: those of its configuration, and what it is told."""
    kept = {"MATEX_STATE": str(folder / STATE), "MATEX_PAUSE": str(pause)} if pause is not None else {}
    return {**variables, "MATEX_TRIAL": str(folder / NOTED), **kept}


def read_output(path: Path) -> str:
    """What a trial has printed; of very much its end. "" where it has not begun."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - _MOST_READ, 0))
        return file.read().decode(errors="replace")
