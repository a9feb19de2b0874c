"""The watchdog reports which ranks wait for which, and ends the job after MATEX_ABORT_SECONDS.

A thread of each rank checks how long the rank has waited at a collective. A rank that waits too long reports its wait
to one rank, the reporter: rank 0, or the next rank that answers. The reporter asks all ranks where they are, and prints
the late ranks, which do not wait at this collective or a later one. It ends the job if no late rank has an excuse
(`excuse_wait`), such as saving a file.

Before an error of another rank ends the job, rank 0 completes the output that precedes it (`_await_first_rank`).

The threads have their own communicator. So a rank answers whatever its script does, unless its process is stopped or
its host is lost. A message is a tuple: its kind, the rank that sends it, and its content:

    "waits"  to the reporter    number of the collective, seconds of waiting, description of the collective
    "heard"  from the reporter  nothing: it confirms "waits"
    "where"  from the reporter  nothing: it asks for the position
    "here"   to the reporter    an `_Answer`
    "failed" to rank 0          number of the next collective of a rank that is about to end the job, and its error
    "ends"   from rank 0        nothing: the failed rank may end the job
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from matex_tf import ops, settings
from matex_tf.runtime import notes, script_frames, shutdown, thread_errors
from matex_tf.thread_flag import starts_own
from matex_tf.world import terminal, world
from matex_tf.world.exit_codes import EXIT_STALLED

_ANSWER_SECONDS = 5.0  # seconds to wait for an answer
_SUSPENDED_SECONDS = 5.0  # a check that is late by these seconds shows that the process was stopped
_SETTLED_SECONDS = 0.2  # rank 0 has waited for a failed rank for these seconds: longer than most transfers take
_FAILED_SECONDS = 60.0  # maximum wait of a failed rank for rank 0; MATEX_STALL_SECONDS if that is less
_FAILED_POLL_SECONDS = 0.05  # interval of the checks after a failure
_MAX_RANKS = 8  # maximum number of listed ranks
_MAX_STACKS = 2  # maximum number of listed stacks
_PROMPT = ("at the prompt of an interactive session", math.inf)  # an activity, as in `_activities`

SAVING_FACTOR = 10.0
"""Other ranks wait for a saving rank for this multiple of MATEX_ABORT_SECONDS."""

_activities: list[tuple[str, float]] = []
"""What this rank does in contexts of `excuse_wait`, each with the time (`time.monotonic`) until which others wait."""
_watch: _Watch | None = None


@contextlib.contextmanager
def excuse_wait(activity: str, factor: float = math.inf) -> Iterator[None]:
    """Context in which this rank is busy with `activity`.

    Others wait up to `factor` * MATEX_ABORT_SECONDS, by default for ever.

    Without this excuse, the reporter ends the job after MATEX_ABORT_SECONDS.
    """
    abort_seconds = settings.get_settings().abort_seconds
    activity_and_limit = activity, time.monotonic() + factor * abort_seconds if abort_seconds else math.inf
    _activities.append(activity_and_limit)
    try:
        yield
    finally:
        _activities.remove(activity_and_limit)


def start_watching() -> None:
    """Start the watchdog of this rank, in a run of several ranks."""
    global _watch
    if _watch is not None or not world.is_active() or not any(_get_limits()):
        return
    if not world.has_threads():
        notes.print_note(
            "this MPI allows one thread at a time (MPI_THREAD_SERIALIZED), so the watchdog is off: a rank that waits "
            "for ever is not reported, whatever MATEX_STALL_SECONDS and MATEX_ABORT_SECONDS say"
        )
        return
    _watch = _Watch()
    with starts_own.set():
        _watch.thread.start()
    if stop_watching not in shutdown.before_finalize:
        shutdown.before_finalize.append(stop_watching)
        shutdown.after_failure.append(_await_first_rank)


def _await_first_rank(error: str) -> None:
    """Wait for rank 0 before an error of this rank ends the job. Does nothing on rank 0 or without a watchdog.

    Rank 0 prints and writes files, so it may come later to the place at which this rank has failed. Returns when rank
    0 waits for this rank at a collective, or after `_FAILED_SECONDS`. If rank 0 fails, too, it ends the job itself.
    With the strategies `async` and `local`, ranks are at different places, and none waits.

    error: the error in few words, for a message to the user. The error itself is shown once, at the end.
    """
    if _watch is None or os.getpid() != _watch.process or _watch.me.rank == 0:
        return
    if not settings.is_statistical(settings.get_settings().strategy):
        _watch.await_first_rank(error)


def _get_limits() -> tuple[float, float]:
    """The seconds after which a wait is reported, and after which the job is aborted; 0: never."""
    return settings.get_settings().stall_seconds, settings.get_settings().abort_seconds


def stop_watching() -> None:
    """Stop the watchdog before MPI ends or the ranks change."""
    global _watch
    if _watch is not None and os.getpid() == _watch.process:
        _watch.ended.set()
        _watch.wake.set()
        _watch.thread.join()
        _watch = None


@dataclass(frozen=True)
class _Answer:
    """The position of a queried rank."""

    number: int  # of the collective at which it waits, or of its next one
    waits_at: str  # the description of the collective at which it waits; "" if it does not wait
    place: str  # the line of the script
    doing: str  # its long activities (`excuse_wait`)
    has_excuse: bool  # the time limit of one of these activities is not over
    updates: int  # the number of updates that it has made
    stack: tuple[str, ...]  # the lines of its Python stack, and of errors that have ended its threads, for a message


@dataclass
class _OwnReport:
    """What this rank has reported about its own wait, and to whom."""

    number: int = -1  # of the collective; -1: this rank has reported no wait
    reporter: int = 0
    sent_at: float | None = None  # time of the last message to this reporter (`time.monotonic`); None: none was sent
    is_confirmed: bool = False  # the reporter has confirmed the last message


@dataclass
class _Stall:
    """What the reporter knows about ranks that wait at one collective. Times are given by `time.monotonic`."""

    number: int  # of the collective
    what: str  # its description
    starts: dict[int, float] = field(default_factory=dict)  # of the wait, for each rank that reported one
    answers: dict[int, _Answer] = field(default_factory=dict)
    asked_at: float | None = None  # when the reporter asked all ranks; None if no answer is awaited
    reported_wait: float = 0.0  # the wait in the last message to the user, in seconds


@dataclass
class _Failure:
    """What rank 0 knows about a rank that is about to end the job for its error."""

    number: int  # of the failed rank's next collective
    error: str  # its error, in few words
    time: float  # when rank 0 got the message (`time.monotonic`)


class _Watch:
    """The watchdog of a rank. Each rank watches its own waits, and is the reporter while others report waits to it."""

    def __init__(self) -> None:
        self.me = world.get_world()
        self.ranks = list(range(self.me.size))  # the remaining ranks
        self.communicator = world.get_communicator("watch")
        self.abort_seconds = _get_limits()[1]
        self.stall_seconds = min(limit for limit in _get_limits() if limit)  # the lower one; 0 is no limit
        self.process = os.getpid()  # a forked child has no watchdog
        self.ended = threading.Event()  # set when the thread is to end
        self.wake = threading.Event()  # set for an immediate check
        self.has_failed = False  # this rank waits for rank 0 in `await_first_rank`
        self.may_end = threading.Event()  # rank 0 lets this rank end the job
        self.failures: dict[int, _Failure] = {}  # of rank 0: the failed ranks that wait for it
        self.is_failure_reported = False  # of rank 0: a message to the user names a failed rank
        self.main = threading.main_thread().ident
        self.thread = threading.Thread(target=self._watch_until_lost, name="matex_tf watchdog", daemon=True)
        self.sent: list[Any] = []  # requests of messages that may be on their way
        self.resumed_at = 0.0  # when the process last continued after it was stopped (time.monotonic)
        self.report = _OwnReport()
        self.stalled: _Stall | None = None  # of the reporter: the latest reported collective; None: no rank waits

    def _watch_until_lost(self) -> None:
        """What the thread does: watch the ranks until `ended`.

        In an elastic run, after a loss, it watches the other ranks until one of them revokes the communicators, which
        gives every waiting rank an error.
        """
        from mpi4py import MPI

        while not self.ended.is_set():
            try:
                self._watch_ranks()
            except MPI.Exception:
                if not settings.get_settings().elastic:
                    raise
                if self.communicator.Is_revoked():
                    self.may_end.set()
                    return  # the surviving ranks start new watchdogs if they continue
                self._leave_out_lost()

    def _leave_out_lost(self) -> None:
        """Exclude lost ranks. The surviving ranks may need time to agree on the loss, and are watched meanwhile."""
        from mpi4py import MPI

        self.communicator.Ack_failed()
        lost_group = self.communicator.Get_failed()
        lost_ranks = MPI.Group.Translate_ranks(lost_group, None, self.communicator.group)
        lost_group.Free()
        if 0 in lost_ranks:
            self.may_end.set()
        self.ranks = [rank for rank in range(self.me.size) if rank not in lost_ranks]
        self.stalled = None  # waiting ranks report again

    def _watch_ranks(self) -> None:
        """Watch until the watchdog is to end. Raises MPI's exception if a rank is lost."""
        checked_at = time.monotonic()
        while not self._await_check():
            last_check, checked_at = checked_at, time.monotonic()
            if checked_at > last_check + _SUSPENDED_SECONDS:
                # The job was stopped and now continues. Late ranks were stopped, too, so the wait counts from now on.
                self.resumed_at, self.stalled = checked_at, None
            while self.communicator.iprobe():
                self._handle_message(*self.communicator.recv())
            self._report_wait()
            if self.stalled is not None:
                self._handle_stall(self.stalled)
            if self.failures:
                self._handle_failures()
            for request in list(self.sent):  # to which the main thread may append meanwhile
                if request.Test():
                    self.sent.remove(request)

    def _await_check(self) -> bool:
        """Wait until the next check is due. Returns whether the thread is to end instead."""
        self.wake.wait(_FAILED_POLL_SECONDS if self.has_failed or self.failures else min(1.0, self.stall_seconds / 4))
        self.wake.clear()
        return self.ended.is_set()

    def await_first_rank(self, error: str) -> None:
        """See `_await_first_rank`."""
        self.has_failed = True
        self.wake.set()
        self._send_message(0, "failed", ops.read_waiting().number, error)
        with excuse_wait("about to end the job for its error"):
            self.may_end.wait(self._get_failed_seconds() + _ANSWER_SECONDS)  # rank 0 may be stopped, and not answer

    def _get_failed_seconds(self) -> float:
        return min(self.stall_seconds, _FAILED_SECONDS)

    def _handle_failures(self) -> None:
        """As rank 0: let the first failed rank end the job if this rank waits for it, or does not come in time."""
        rank, failure = min(self.failures.items(), key=lambda item: (item[1].number, item[1].time))
        waiting, now = ops.read_waiting(), time.monotonic()
        waited = min(waiting.seconds, now - failure.time)  # a wait may include a transfer that began before the failure
        waits_for_it = waiting.number >= failure.number and waited >= _SETTLED_SECONDS
        is_late = now >= failure.time + self._get_failed_seconds()
        if waits_for_it or is_late or (hasattr(sys, "ps1") and _is_at_prompt(self._read_stack())):
            shutdown.flush_files()  # the end of the job kills this rank
            del self.failures[rank]
            self._send_message(rank, "ends")
        elif not self.is_failure_reported and now >= failure.time + _ANSWER_SECONDS:
            self.is_failure_reported = True
            place = script_frames.describe_place(self._read_stack())
            terminal.write_text(
                f"matex_tf: rank {rank} of {self.me.size} on {self.me.hosts[rank]} has failed ({failure.error}), and "
                f"ends the job when rank 0 ({self.me.host}), which is at {place}, has come as far, or after "
                f"{self._get_failed_seconds():.0f} s\n"
            )

    def _send_message(self, rank: int, kind: str, *content: Any) -> None:
        if rank == self.me.rank:
            self._handle_message(kind, rank, *content)
        else:
            self.sent.append(self.communicator.isend((kind, self.me.rank, *content), rank))

    def _handle_message(self, kind: str, rank: int, *content: Any) -> None:
        if kind == "waits":
            number, seconds, description = content
            if self.stalled is None or number > self.stalled.number:
                self.stalled = _Stall(number, description)
            self.stalled.starts[rank] = time.monotonic() - seconds
            self._send_message(rank, "heard")
        elif kind == "heard":
            self.report.is_confirmed = True
        elif kind == "where":
            self._send_message(rank, "here", self._make_answer())
        elif kind == "here" and self.stalled is not None:
            (self.stalled.answers[rank],) = content
        elif kind == "failed":
            number, error = content
            self.failures[rank] = _Failure(number, error, time.monotonic())
        elif kind == "ends":
            self.may_end.set()

    def _make_answer(self) -> _Answer:
        waiting, stack = ops.read_waiting(), self._read_stack()
        activities = [*_activities, _PROMPT] if _is_at_prompt(stack) else list(_activities)
        return _Answer(
            number=waiting.number, waits_at=waiting.what, place=script_frames.describe_place(stack),
            doing="; ".join(activity for activity, _ in activities),
            has_excuse=any(time.monotonic() < deadline for _, deadline in activities),
            updates=ops.count_updates(),
            stack=(*script_frames.format_stack(stack), *thread_errors.describe().splitlines()),
        )  # fmt: skip

    def _report_wait(self) -> None:
        """Report this rank's wait to the reporter, or to the next rank if the reporter does not confirm or is lost."""
        waiting, now = ops.read_waiting(), time.monotonic()
        waited = min(waiting.seconds, now - self.resumed_at)
        if waited < self.stall_seconds:
            return
        if waiting.number != self.report.number:  # a new wait: begin with rank 0
            self.report = _OwnReport(waiting.number)
        report = self.report
        is_overdue = report.sent_at is not None and not report.is_confirmed and now > report.sent_at + _ANSWER_SECONDS
        if is_overdue and report.reporter < self.me.rank:  # this rank itself is the last reporter in question
            self.report = report = _OwnReport(waiting.number, report.reporter + 1)
        while report.reporter not in self.ranks:
            self.report = report = _OwnReport(waiting.number, report.reporter + 1)
        # Report again from time to time: the reporter forgets its reports when ranks are lost, for example.
        is_old = report.is_confirmed and report.sent_at is not None and now > report.sent_at + self.stall_seconds / 2
        if report.sent_at is None or is_old:
            report.sent_at, report.is_confirmed = now, False
            self._send_message(report.reporter, "waits", waiting.number, waited, waiting.what)

    def _handle_stall(self, stall: _Stall) -> None:
        """As the reporter: once a report is due, ask all ranks where they are.

        A later call, once all ranks have answered or had the time to, prints the late ranks, and may end the job.
        """
        now = time.monotonic()
        waited = now - min(stall.starts.values())
        if stall.asked_at is None:
            if self._is_report_due(stall, waited):
                stall.asked_at, stall.answers = now, {}
                for rank in self.ranks:
                    self._send_message(rank, "where")
            return
        have_answered = stall.answers.keys() >= set(self.ranks)
        if not have_answered and now < stall.asked_at + _ANSWER_SECONDS:
            return
        if ops.read_waiting().number > stall.number:  # the collective was completed meanwhile
            self.stalled = None
            return
        late_ranks = [rank for rank in self.ranks if not self._is_waiting(stall, rank)]
        text = (
            self._describe_late(stall, waited, late_ranks) if late_ranks else self._describe_mutual_wait(stall, waited)
        )
        terminal.write_text(text)
        stall.asked_at, stall.reported_wait = None, waited
        is_excused = any(stall.answers[rank].has_excuse for rank in late_ranks if rank in stall.answers)
        if self.abort_seconds and waited >= self.abort_seconds and not is_excused:
            reason = f"after MATEX_ABORT_SECONDS={self.abort_seconds}"
            terminal.write_text(f"matex_tf: ending the job (exit code {EXIT_STALLED}) {reason}\n")
            shutdown.abort_all_ranks(EXIT_STALLED)

    def _is_report_due(self, stall: _Stall, waited: float) -> bool:
        """Whether to report a wait of `waited` seconds, so that messages become rarer.

        A report is due after MATEX_STALL_SECONDS, then at each double of the wait reported last, and at
        MATEX_ABORT_SECONDS, when the job may be ended.
        """
        if waited < stall.reported_wait:
            stall.reported_wait = 0.0  # this wait began later than the reported one
        due_seconds = max(self.stall_seconds, 2 * stall.reported_wait)
        if stall.reported_wait < self.abort_seconds:
            due_seconds = min(due_seconds, self.abort_seconds)
        return waited >= due_seconds

    @staticmethod
    def _is_waiting(stall: _Stall, rank: int) -> bool:
        """Whether a rank has answered that it waits at this collective or a later one."""
        answer = stall.answers.get(rank)
        return answer is not None and bool(answer.waits_at) and answer.number >= stall.number

    def _describe_late(self, stall: _Stall, waited: float, late_ranks: list[int]) -> str:
        """The message about the `late_ranks`, for which the others have waited for `waited` seconds."""
        hosts = self.me.hosts
        waiting_ranks = [rank for rank in self.ranks if rank not in late_ranks]
        names = ", ".join(f"rank {rank} ({hosts[rank]})" for rank in waiting_ranks[:_MAX_RANKS])
        names += f" and {len(waiting_ranks) - _MAX_RANKS} more" if len(waiting_ranks) > _MAX_RANKS else ""
        updates = ops.count_updates()
        place = f"{stall.what} (collective number {stall.number}, after {updates} updates)"
        verb = "have" if len(waiting_ranks) > 1 else "has"
        lines = [f"matex_tf: for {waited:.0f} s {names} {verb} waited at {place} for:"]
        for rank in late_ranks[:_MAX_RANKS]:
            answer = stall.answers.get(rank)
            if answer is None:
                position = "does not answer: its process is stopped, or its host cannot be reached"
            else:
                activity = f"it is {answer.doing}" if answer.doing else f"it is at {answer.place}"
                position = f"comes to number {answer.number} next; {activity}; it has made {answer.updates} updates"
            lines.append(f"  rank {rank} ({hosts[rank]}) {position}")
        if len(late_ranks) > _MAX_RANKS:
            lines.append(f"  and {len(late_ranks) - _MAX_RANKS} more")
        for rank in [rank for rank in late_ranks if rank in stall.answers][:_MAX_STACKS]:
            lines += [f"  the Python stack of rank {rank} ({hosts[rank]}):", *stall.answers[rank].stack]
        return "\n".join(lines) + "\n"

    def _describe_mutual_wait(self, stall: _Stall, waited: float) -> str:
        """The message if no rank is late: ranks wait for one another, or a transfer of all ranks takes this long."""
        hosts = self.me.hosts
        reasons = "for one another, because their code has diverged, or for a transfer that takes this long"
        progress = f"after {ops.count_updates()} updates"
        lines = [f"matex_tf: all ranks have waited for up to {waited:.0f} s, {progress}: {reasons}:"]
        for rank in self.ranks[:_MAX_RANKS]:
            answer = stall.answers[rank]
            wait_text = f"waits at {answer.waits_at} (collective number {answer.number})"
            lines.append(f"  rank {rank} ({hosts[rank]}) {wait_text}; it is at {answer.place}")
        if len(self.ranks) > _MAX_RANKS:
            lines.append(f"  and {len(self.ranks) - _MAX_RANKS} more")
        return "\n".join(lines) + "\n"

    def _read_stack(self) -> list[traceback.FrameSummary]:
        """The stack of the main thread, outermost frame first; [] if the thread has ended."""
        frame = sys._current_frames().get(self.main) if self.main is not None else None
        if frame is None:
            return []
        return [summary for summary in traceback.extract_stack(frame) if not summary.filename.startswith("<frozen")]


def _is_at_prompt(stack: list[traceback.FrameSummary]) -> bool:
    """Whether this rank waits for a person's input at a prompt: its main thread has no frame, or is in the editor."""
    return hasattr(sys, "ps1") and (not stack or "_pyrepl" in stack[-1].filename)
