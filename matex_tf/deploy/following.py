"""Follow a job to its end: print one line for each change of its state, and copy its output."""

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

ASK_EACH, LOOK_EACH = 5.0, 1.0  # seconds between queries of the scheduler, and between reads of the output
TELL = 60.0  # seconds in the queue before the wait is reported again; the interval then doubles


class Target(Protocol):
    """A stream that takes bytes."""

    def write(self, piece: bytes, /) -> object:
        """Write the bytes."""

    def flush(self) -> None:
        """Flush the stream."""


class Text:
    """Writes bytes to a text-only stream, such as a notebook's. A character may be split between two calls."""

    def __init__(self, target: TextIO):
        self._target = target
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, piece: bytes, /) -> None:
        """Decode and write the bytes."""
        self._target.write(self._decoder.decode(piece))

    def flush(self) -> None:
        """Flush the stream."""
        self._target.flush()


class Lines:
    """The output of a job, for a file. If a line was overwritten, as progress bars do, only its
    last version is kept.
    """

    def __init__(self, target: Target):
        self._target = target
        self._rest = b""

    def write(self, piece: bytes) -> None:
        """Write all lines that are now complete."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._target.write(_strip_overwritten(line) + b"\n")
        # An incomplete line also keeps only its last version; otherwise a progress bar without a line end would grow.
        self._rest = _strip_overwritten(self._rest) + (b"\r" if self._rest.endswith(b"\r") else b"")
        self._target.flush()

    def close(self) -> None:
        """Write the incomplete last line."""
        self._target.write(_strip_overwritten(self._rest))
        self._target.flush()


class Plain:
    """The output of a job, for a terminal: unchanged."""

    def __init__(self, target: Target):
        self._target = target

    def write(self, piece: bytes) -> None:
        """Write and flush the bytes."""
        self._target.write(piece)
        self._target.flush()

    def close(self) -> None:
        """Nothing is buffered."""


def _strip_overwritten(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def open_stdout() -> Target:
    """The standard output of this process as a byte stream, even if `sys.stdout` was replaced by a text stream."""
    return getattr(sys.stdout, "buffer", None) or Text(sys.stdout)


def choose_stdout() -> Lines | Plain:
    """The standard output of this process, wrapped for the output of a job."""
    return (Plain if sys.stdout.isatty() else Lines)(open_stdout())


def print_line(text: str) -> None:
    """Print a line for the user."""
    print(f"matex: {text}", file=sys.stderr, flush=True)


def follow_job(
    job: Job, state: Callable[[], State], more: Callable[[], bytes], write: Callable[[bytes], object] | None = None
) -> int:
    """Follow the job until it has ended or cannot start. Returns its exit code.

    `more` returns the output since its last call. An unreachable scheduler is queried again: the job runs on without
    it.
    """
    out = None if write else choose_stdout()
    write_output = write or (out.write if out else lambda _: None)
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
        # The state is queried first: if the job has ended, its output is then complete.
        if piece := more():
            write_output(piece)
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
