"""Follow a job to its end: print one line for each change of its state, and copy its output.

The modules of the clusters call `follow_job` with two functions: one queries the state, the other reads new output.
"""

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
WAIT_REPORT_SECONDS = 60.0  # seconds in the queue before the wait is reported again; the interval then doubles


Write = Callable[[bytes], object]


class Target(Protocol):
    """A stream that takes bytes."""

    def write(self, chunk: bytes, /) -> object:
        """Write the bytes."""

    def flush(self) -> None:
        """Flush the stream."""


class Text:
    """Writes bytes to a text-only stream, such as a notebook's. A character may be split between two calls."""

    def __init__(self, target: TextIO):
        self._target = target
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, chunk: bytes, /) -> None:
        """Decode and write the bytes."""
        self._target.write(self._decoder.decode(chunk))

    def flush(self) -> None:
        """Flush the stream."""
        self._target.flush()


class Lines:
    """The output of a job, for a file. Of an overwritten line, as of a progress bar, the last version is kept."""

    def __init__(self, target: Target):
        self._target = target
        self._unfinished = b""

    def write(self, chunk: bytes) -> None:
        """Write all lines that are now complete."""
        *lines, self._unfinished = (self._unfinished + chunk).split(b"\n")
        for line in lines:
            self._target.write(_strip_overwritten(line) + b"\n")
        # An incomplete line also keeps only its last version; otherwise a progress bar without a line end would grow.
        self._unfinished = _strip_overwritten(self._unfinished) + (b"\r" if self._unfinished.endswith(b"\r") else b"")
        self._target.flush()

    def close(self) -> None:
        """Write the incomplete last line."""
        self._target.write(_strip_overwritten(self._unfinished))
        self._target.flush()


class Plain:
    """The output of a job, for a terminal: unchanged."""

    def __init__(self, target: Target):
        self._target = target

    def write(self, chunk: bytes) -> None:
        """Write and flush the bytes."""
        self._target.write(chunk)
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
    job: Job, find_state: Callable[[], State], read_more: Callable[[], bytes], write: Write | None = None
) -> int:
    """Follow the job until it has ended or cannot start. Returns its exit code.

    Args:
        find_state: returns the state of the job. If it raises UnreachableError, it is called again later.
        read_more: returns the output since its last call.
        write: receives the output; None: it goes to standard output.
    """
    stdout = None if write else choose_stdout()
    write_output = write or (stdout.write if stdout else lambda _: None)
    reported_state, reported_wait = "", 0.0
    is_unreachable, next_query_at = False, 0.0
    while True:
        current: State | None = None
        if time.monotonic() >= next_query_at:
            try:
                current = find_state()
                is_unreachable = False
            except UnreachableError as error:
                if not is_unreachable:
                    print_line(f"{error}; asked again every {ASK_EACH:.0f} s")
                is_unreachable = True
            next_query_at = time.monotonic() + ASK_EACH
        # The output is read after the query: if the job has ended, the output is complete.
        if chunk := read_more():
            write_output(chunk)
        waited = (current.seconds or 0.0) if current and current.phase == WAITING else 0.0
        if current and str(current) != reported_state:
            reported_state = str(current)
            if current.phase in (ENDED, FORGOTTEN) and stdout:
                stdout.close()
            print_line(f"{job.id} {current}")
            if current.phase == STUCK:
                print_line(f"{job.id} is still queued (out of the queue: matex cancel {job.id})")
            reported_wait = current.seconds or 0.0
        elif current and waited >= max(WAIT_REPORT_SECONDS, 2 * reported_wait):
            print_line(f"{job.id} has waited for {format_duration(waited)}; {current}")
            reported_wait = waited
        if current and current.phase in (ENDED, FORGOTTEN, STUCK):
            return EXIT_UNKNOWN if current.code is None else current.code
        time.sleep(LOOK_EACH)
