"""The watchdog reports which ranks wait for which, and ends the job after MATEX_ABORT_SECONDS.

A thread of each rank checks how long the rank has waited at a collective. A rank that waits too long reports its wait
to one rank, the reporter: rank 0, or the next rank that answers. The reporter asks all ranks where they are, and prints
the late ranks, which do not wait at this collective or a later one. It ends the job if no late rank has an excuse
(`excuse_wait`), such as saving a file.

Before an error of another rank ends the job, rank 0 completes the output that precedes it (`failed_ranks`).

The threads have their own communicator. So a rank answers whatever its script does, unless its process is stopped or
its host is lost. A message is a tuple: its kind, the rank that sends it, and its content:

    "waits"  to the reporter    number of the collective, seconds of waiting, description of the collective
    "heard"  from the reporter  nothing: it confirms "waits"
    "where"  from the reporter  nothing: it asks for the position
    "here"   to the reporter    a `stalls.Answer`
    "failed" to rank 0          number of the next collective of a rank that is about to end the job, and its error
    "ends"   from rank 0        nothing: the failed rank may end the job
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from matex_tf import ops, settings
from matex_tf.lazy import MPI
from matex_tf.runtime import notes, script_frames, shutdown, thread_errors
from matex_tf.runtime.failed_ranks import FailedRanks
from matex_tf.runtime.stalls import Answer, Stall
from matex_tf.thread_flag import starts_own
from matex_tf.world import terminal, world
from matex_tf.world.exit_codes import EXIT_STALLED

_ANSWER_SECONDS = 5.0  # seconds to wait for an answer
_SUSPENDED_SECONDS = 5.0  # a check that is late by these seconds shows that the process was stopped
_FAILED_SECONDS = 60.0  # maximum wait of a failed rank for rank 0; MATEX_STALL_SECONDS if that is less
_FAILED_POLL_SECONDS = 0.05  # interval of the checks after a failure
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
    """Wait for rank 0 before an error of this rank ends the job (`failed_ranks`). Does nothing without a watchdog.

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


@dataclass
class _OwnReport:
    """What this rank has reported about its own wait, and to whom."""

    number: int = -1  # of the collective; -1: this rank has reported no wait
    reporter: int = 0
    sent_at: float | None = None  # time of the last message to this reporter (`time.monotonic`); None: none was sent
    is_confirmed: bool = False  # the reporter has confirmed the last message


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
        self.failed_seconds = min(self.stall_seconds, _FAILED_SECONDS)
        self.failed = FailedRanks(self.failed_seconds)  # of rank 0
        self.thread = threading.Thread(target=self._watch_until_lost, name="matex_tf watchdog", daemon=True)
        self.sent: list[Any] = []  # requests of messages that may be on their way
        self.resumed_at = 0.0  # when the process last continued after it was stopped (time.monotonic)
        self.report = _OwnReport()
        self.stalled: Stall | None = None  # of the reporter: the latest reported collective; None: no rank waits

    def _watch_until_lost(self) -> None:
        """What the thread does: watch the ranks until `ended`.

        In an elastic run, after a loss, it watches the other ranks until one of them revokes the communicators, which
        gives every waiting rank an error.
        """
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
            if self.failed and (released_rank := self.failed.release(script_frames.read_main_stack)) is not None:
                self._send_message(released_rank, "ends")
            for request in list(self.sent):  # to which the main thread may append meanwhile
                if request.Test():
                    self.sent.remove(request)

    def _await_check(self) -> bool:
        """Wait until the next check is due. Returns whether the thread is to end instead."""
        self.wake.wait(_FAILED_POLL_SECONDS if self.has_failed or self.failed else min(1.0, self.stall_seconds / 4))
        self.wake.clear()
        return self.ended.is_set()

    def await_first_rank(self, error: str) -> None:
        """See `_await_first_rank`."""
        self.has_failed = True
        self.wake.set()
        self._send_message(0, "failed", ops.read_waiting().number, error)
        with excuse_wait("about to end the job for its error"):
            self.may_end.wait(self.failed_seconds + _ANSWER_SECONDS)  # rank 0 may be stopped, and not answer

    def _send_message(self, rank: int, kind: str, *content: Any) -> None:
        if rank == self.me.rank:
            self._handle_message(kind, rank, *content)
        else:
            self.sent.append(self.communicator.isend((kind, self.me.rank, *content), rank))

    def _handle_message(self, kind: str, rank: int, *content: Any) -> None:
        if kind == "waits":
            number, seconds, description = content
            if self.stalled is None or number > self.stalled.number:
                self.stalled = Stall(number, description)
            self.stalled.starts[rank] = time.monotonic() - seconds
            self._send_message(rank, "heard")
        elif kind == "heard":
            self.report.is_confirmed = True
        elif kind == "where":
            self._send_message(rank, "here", self._make_answer())
        elif kind == "here" and self.stalled is not None:
            (self.stalled.answers[rank],) = content
        elif kind == "failed":
            self.failed.add(rank, *content)
        elif kind == "ends":
            self.may_end.set()

    def _make_answer(self) -> Answer:
        waiting, stack = ops.read_waiting(), script_frames.read_main_stack()
        activities = [*_activities, _PROMPT] if script_frames.is_at_prompt(stack) else list(_activities)
        return Answer(
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

    def _handle_stall(self, stall: Stall) -> None:
        """As the reporter: once a report is due, ask all ranks where they are.

        A later call, once all ranks have answered or had the time to, prints the late ranks, and may end the job.
        """
        now = time.monotonic()
        waited = now - min(stall.starts.values())
        if stall.asked_at is None:
            if stall.is_report_due(waited, self.stall_seconds, self.abort_seconds):
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
        late_ranks = stall.list_late(self.ranks)
        terminal.write_text(stall.describe(waited, self.ranks, late_ranks))
        stall.asked_at, stall.reported_wait = None, waited
        if self.abort_seconds and waited >= self.abort_seconds and not stall.is_excused(late_ranks):
            reason = f"after MATEX_ABORT_SECONDS={self.abort_seconds}"
            terminal.write_text(f"matex_tf: ending the job (exit code {EXIT_STALLED}) {reason}\n")
            shutdown.abort_all_ranks(EXIT_STALLED)
