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


class LineSplitter:
    """Splits output into lines. Of an overwritten line, as of a progress bar, only the last version remains.

    From b"10%\\r20%\\r" and b"30%\\ndone" result the line b"30%" and the rest b"done".
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        # The incomplete line keeps only its last version, too: a progress bar without a line end would grow. A carriage
        # return at its end erases nothing yet.
        self._rest = rest[rest.rstrip(b"\r").rfind(b"\r") + 1 :]
        return [_strip_overwritten(line) for line in lines]

    @property
    def rest(self) -> bytes:
        """The incomplete last line."""
        return _strip_overwritten(self._rest)


def _strip_overwritten(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]


class Lines:
    """The output of a job, for a file: complete lines, as `LineSplitter` has them."""

    def __init__(self, target: Target):
        self._target = target
        self._splitter = LineSplitter()

    def write(self, chunk: bytes) -> None:
        """Write all lines that are now complete."""
        for line in self._splitter.feed(chunk):
            self._target.write(line + b"\n")
        self._target.flush()

    def close(self) -> None:
        """Write the incomplete last line."""
        self._target.write(self._splitter.rest)
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
    close_output: Callable[[], object] = lambda: None  # noqa: E731
    if write is None:
        stdout = choose_stdout()
        write, close_output = stdout.write, stdout.close
    reported_state, reported_wait = "", 0.0
    is_unreachable, next_query_at = False, 0.0
    while True:
        state: State | None = None
        if time.monotonic() >= next_query_at:
            try:
                state = find_state()
                is_unreachable = False
            except UnreachableError as error:
                if not is_unreachable:
                    print_line(f"{error}; asked again every {ASK_EACH:.0f} s")
                is_unreachable = True
            next_query_at = time.monotonic() + ASK_EACH
        # The output is read after the query: if the job has ended, the output is complete.
        if chunk := read_more():
            write(chunk)
        if state is None:
            time.sleep(LOOK_EACH)
            continue
        seconds = state.seconds or 0.0
        if str(state) != reported_state:
            if state.phase in (ENDED, FORGOTTEN):
                close_output()
            print_line(f"{job.id} {state}")
            if state.phase == STUCK:
                print_line(f"{job.id} is still queued (out of the queue: matex cancel {job.id})")
            reported_state, reported_wait = str(state), seconds
        elif state.phase == WAITING and seconds >= max(WAIT_REPORT_SECONDS, 2 * reported_wait):
            print_line(f"{job.id} has waited for {format_duration(seconds)}; {state}")
            reported_wait = seconds
        if state.phase in (ENDED, FORGOTTEN, STUCK):
            return EXIT_UNKNOWN if state.code is None else state.code
        time.sleep(LOOK_EACH)
