"""Follow a job to its end: print one line for each change of its state, and copy its output."""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Callable

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

ASK_EACH = 5.0  # seconds between queries of the scheduler for the state of the job
LOOK_EACH = 1.0  # seconds between reads of the job's output
WAIT_REPORT_SECONDS = 60.0  # seconds in the queue before the wait is reported again; the interval then doubles


class LineSplitter:
    """Splits output into lines. A line that carriage returns overwrite, such as a progress bar, has several versions;
    only the last one remains.

    From b"10%\\r20%\\r" and b"30%\\ndone" result the line b"30%" and the rest b"done".
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        # Of the incomplete line only the last version is kept. Otherwise the line of a progress bar, which has no line
        # end for a long time, would grow. The version before a final carriage return is the last one: nothing has
        # overwritten it yet.
        self._rest = rest[rest.rstrip(b"\r").rfind(b"\r") + 1 :]
        return [_strip_overwritten(line) for line in lines]

    @property
    def rest(self) -> bytes:
        """The incomplete last line."""
        return _strip_overwritten(self._rest)


def _strip_overwritten(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]


class Output:
    """The standard output of this process, for the output of a job.

    A terminal gets all bytes. A file or a notebook gets lines, as `LineSplitter` has them.
    """

    def __init__(self) -> None:
        self._stdout = sys.stdout
        self._splitter = None if sys.stdout.isatty() else LineSplitter()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, chunk: bytes) -> None:
        if self._splitter is not None:
            chunk = b"".join(line + b"\n" for line in self._splitter.feed(chunk))
        self.write_bytes(chunk)

    def write_bytes(self, chunk: bytes) -> None:
        """Write bytes unchanged; the stream of a notebook takes only text."""
        if (binary_stream := getattr(self._stdout, "buffer", None)) is not None:
            self._stdout.flush()  # text that was printed before
            binary_stream.write(chunk)
        else:
            self._stdout.write(self._decoder.decode(chunk))
        self._stdout.flush()

    def close(self) -> None:
        """Write the incomplete last line."""
        if self._splitter is not None:
            self.write_bytes(self._splitter.rest)


def print_line(text: str) -> None:
    print(f"matex: {text}", file=sys.stderr, flush=True)


def follow_job(
    job: Job, find_state: Callable[[], State], read_more: Callable[[], bytes], shows_output: bool = True
) -> int:
    """Follow the job until it has ended or cannot start. Returns its exit code.

    Args:
        find_state: returns the state of the job. If it raises UnreachableError, it is called again later.
        read_more: returns the output since its last call.
        shows_output: the output goes to standard output; otherwise it is discarded.
    """
    output = Output() if shows_output else None
    reported_state, reported_wait = "", 0.0  # the text of the last printed state; seconds of the last printed wait
    is_unreachable, next_query_at = False, 0.0  # whether the last query failed; seconds of time.monotonic
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
        if (chunk := read_more()) and output is not None:
            output.write(chunk)
        if state is None:
            time.sleep(LOOK_EACH)
            continue
        seconds = state.seconds or 0.0
        if str(state) != reported_state:
            if state.phase in (ENDED, FORGOTTEN) and output is not None:
                output.close()  # before the line about the end of the job
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
