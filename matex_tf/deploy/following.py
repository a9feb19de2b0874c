"""Follows a job to its end: each change of its state is a line, and what it prints is copied."""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from matex_tf.deploy.job import (
    ENDED,
    EXIT_UNKNOWN,
    FORGOTTEN,
    STUCK,
    WAITING,
    Job,
    State,
    UnreachableError,
    format_duration,
)

ASK_EACH, LOOK_EACH = 5.0, 1.0  # seconds between two questions to the scheduler, and between two looks at the output
TELL = 60.0  # seconds in a queue, after which a line says so again; then after twice as long each time


class Target(Protocol):
    """Where bytes are written."""

    def write(self, piece: bytes, /) -> object:
        """Write it."""

    def flush(self) -> None:
        """Let others see it."""


class Text:
    """Bytes for a stream that takes texts alone, as that of a notebook; a character may come in two pieces."""

    def __init__(self, target: TextIO):
        self._target = target
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, piece: bytes, /) -> None:
        """Write it."""
        self._target.write(self._decoder.decode(piece))

    def flush(self) -> None:
        """Let others see it."""
        self._target.flush()


class Lines:
    """What a job prints, for a file: of a line that was written over and over, as progress bars do, only the last."""

    def __init__(self, target: Target):
        self._target = target
        self._rest = b""

    def write(self, piece: bytes) -> None:
        """Write the whole lines of what came so far."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._target.write(_strip_overwritten(line) + b"\n")
        # What has been written over is not kept either: a bar without an end would grow.
        self._rest = _strip_overwritten(self._rest) + (b"\r" if self._rest.endswith(b"\r") else b"")
        self._target.flush()

    def close(self) -> None:
        """Write what had no end of line."""
        self._target.write(_strip_overwritten(self._rest))
        self._target.flush()


class Plain:
    """What a job prints, for a terminal: as it is."""

    def __init__(self, target: Target):
        self._target = target

    def write(self, piece: bytes) -> None:
        """Write it."""
        self._target.write(piece)
        self._target.flush()

    def close(self) -> None:
        """Nothing is left."""


def _strip_overwritten(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def open_stdout() -> Target:
    """The standard output of this process, for bytes, whatever stands in its place."""
    return getattr(sys.stdout, "buffer", None) or Text(sys.stdout)


def choose_stdout() -> Lines | Plain:
    """The standard output of this process, for what a job prints."""
    return (Plain if sys.stdout.isatty() else Lines)(open_stdout())


def print_line(text: str) -> None:
    """A line for the person who follows."""
    print(f"matex: {text}", file=sys.stderr, flush=True)


def follow_job(
    job: Job, state: Callable[[], State], more: Callable[[], bytes], write: Callable[[bytes], object] | None = None
) -> int:
    """Until the job has ended, or will not start; its exit code. `more` gives what it printed since the last call.

    A scheduler that does not answer is asked again: the job does not depend on it being asked.
    """
    out = None if write else choose_stdout()
    put = write or (out.write if out else lambda _: None)
    before, silent, next_time, told_at = "", False, 0.0, 0.0
    while True:
        now: State | None = None
        if time.monotonic() >= next_time:
            try:
                now = state()
                silent = False
            except UnreachableError as error:
                if not silent:
                    print_line(f"{error}; asked again every {ASK_EACH:.0f} s")
                silent = True
            next_time = time.monotonic() + ASK_EACH
        # What was printed before the end is there once the end is known.
        if piece := more():
            put(piece)
        if now and str(now) != before:
            before = str(now)
            if now.phase in (ENDED, FORGOTTEN) and out:
                out.close()
            print_line(f"{job.id} {now}")
            if now.phase == STUCK:
                print_line(f"{job.id} is still queued (out of the queue: matex cancel {job.id})")
            told_at = now.seconds or 0.0
        elif now and now.phase == WAITING and now.seconds is not None and now.seconds >= max(TELL, 2 * told_at):
            print_line(f"{job.id} has waited for {format_duration(now.seconds)}; {now}")
            told_at = now.seconds
        if now and now.phase in (ENDED, FORGOTTEN, STUCK):
            return EXIT_UNKNOWN if now.code is None else now.code
        time.sleep(LOOK_EACH)
