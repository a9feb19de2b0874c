"""`matex run --restarts`: start mpirun again after a loss, on the hosts that answer, and report the outcome.

`RestartedRun` makes attempts until `judge_end` finds no reason for another one. docs/reliability.md defines when a run
is lost, and docs/adapt.md when its ranks ask for a change. `resilience.run_state` saves the state from which the next
attempt resumes.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matex_tf.adapt import offers
from matex_tf.deploy.job import format_count
from matex_tf.launch import process, rank_ends, run_end
from matex_tf.launch.hosts.changing import Changes
from matex_tf.launch.hosts.places import Attempt, Places
from matex_tf.launch.hosts.watch import Watch
from matex_tf.launch.run_end import RunEnd
from matex_tf.world import child_process
from matex_tf.world.exit_codes import EXIT_REQUEUE, EXIT_STALLED, EXIT_UNPROVED

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a restart
# The kinds of the end of an attempt. Only LOST and CHANGED lead to another attempt.
COMPLETED = "completed"  # success, proved by the ranks' records
OWN_CODE = "own code"  # the script's own exit code: the script would end in the same way again
STOPPED = "stopped"  # asked to end by a batch system; the next run of the same command resumes
LOST = "lost"  # a rank or a host was lost
INTERRUPTED = "interrupted"  # ended by a person
CHANGED = "changed"  # the ranks left, to be restarted with a change (`--adapt=ranks`)
# mpirun kills the ranks after SIGTERM, but forwards SIGUSR1 to them, and they save their state. So it gets SIGUSR1.
_REPLACEMENTS: dict[int, int] = {signal.SIGTERM: signal.SIGUSR1}
_INTERRUPTS = {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP}


def judge_end(code: int, end: RunEnd, has_changed: bool, received_signals: set[int]) -> str:
    """The kind of an end: the first one that applies.

    Args:
        code: mpirun's exit code.
        end: the ranks' records.
        has_changed: the ranks have left for a change (`--adapt=ranks`).
        received_signals: by this process, during the attempt.
    """
    is_asked_to_stop = bool(received_signals & process.STOP_REQUESTS)
    has_left = has_changed or end.asks_again
    kinds = [
        # mpirun may return 0 also if the ranks have left: when Slurm preempts a job, it signals ranks and mpirun's
        # daemons alike.
        (COMPLETED, code == 0 and end.proves_success and not has_left),
        # By a person. mpirun then asks the ranks to end, as a batch system would.
        (INTERRUPTED, received_signals & _INTERRUPTS),
        (CHANGED, has_changed and not end.asks_again and not is_asked_to_stop),
        (STOPPED, has_left),
        # The script has chosen an exit code other than 0, or a process without other ranks has one of its own, or a
        # process failed when the run was complete.
        (OWN_CODE, end.proves_success or end.script_chose(code)),
        (STOPPED, is_asked_to_stop),
        (OWN_CODE, code > 0 and end.script_failed(code)),
        # A failure before the script began. A code above 128 means a signal.
        (OWN_CODE, 0 < code <= 128 and not end.script_has_begun),
        # Also exit code 0 without proof, which means a lost host.
        (LOST, True),
    ]
    return next(kind for kind, applies in kinds if applies)


def explain_end(code: int) -> str:
    """The reason for the loss of a run, in words."""
    if name := rank_ends.find_signal(code):
        return f"a rank was killed by {name} (exit code {code})"
    if code == 0:
        return "a rank or a host was lost, though mpirun ended with exit code 0"
    reason = "ranks waited too long for others" if code == EXIT_STALLED else "a rank or a host was lost"
    return f"{reason} (exit code {code})"


def compute_pause(restart: int) -> float:
    """Seconds before restart number `restart`, counted from 1. The pause grows, so that a temporary fault can pass."""
    return min(FIRST_PAUSE * 2 ** (restart - 1), LONGEST_PAUSE)


@dataclass
class RestartedRun:
    """A run with at most `restarts` restarts after losses. `run` returns once no restart is due."""

    places: Places  # the hosts, and whether the ranks may change them
    restarts: int
    make_command: Callable[[Attempt], Sequence[str]]  # makes the command line of an attempt
    shared_folder: str | os.PathLike | None  # a folder that all hosts see; None if all ranks run on this host
    state: str  # the folder with the state of the run
    report: Callable[[str], None] = lambda text: None  # receives each message for the user, which is also printed
    may_choose: bool = False  # the ranks may choose their strategy

    def __post_init__(self) -> None:
        self._losses: list[str] = []  # the reason of each lost attempt, and thus of each restart
        self._received_signals: set[int] = set()  # by this process, during the last attempt

    def run(self) -> int:
        """Run attempts until no restart is due. Returns the exit code."""
        try:
            # Between attempts, there is no mpirun to receive the signals.
            with child_process.handle_signals(process.STOP_REQUESTS | _INTERRUPTS, _raise_request):
                kind, code = self._run_attempts()
        except _StopRequest as request:
            (number,) = request.args
            if number in _INTERRUPTS:
                return self._report_interrupt({number})
            next_run = f"the same command goes on from {self.state} (exit code {EXIT_REQUEUE})"
            self._say(f"{signal.Signals(number).name} before the restart; {next_run}")
            return EXIT_REQUEUE
        if kind == INTERRUPTED:
            return self._report_interrupt(self._received_signals & _INTERRUPTS)
        if kind == LOST:  # `_run_attempts` has reported it
            return code or EXIT_UNPROVED
        if kind == STOPPED and code != 0:
            self._say(
                f"the run was asked to end, and its ranks have ended (exit code {EXIT_REQUEUE}). mpirun's message "
                f"about an abort or a signal reports this end; the same command {self._describe_next_run()}"
            )
        if self._losses:
            restarts_text = format_count(len(self._losses), "restart")
            self._say(f"{_describe_end(kind, code)} after {restarts_text}: {_list_losses(self._losses)}")
        if kind == STOPPED:
            return EXIT_REQUEUE
        return 0 if kind == COMPLETED else code or EXIT_UNPROVED

    def _say(self, text: str) -> None:
        print(f"matex: {text}", file=sys.stderr, flush=True)
        self.report(text)

    def _run_attempts(self) -> tuple[str, int]:
        """Run attempts until no restart is due. Returns the kind of the last end, and mpirun's exit code."""
        attempt, places = self.places.first, self.places
        changes = Changes(places, self.may_choose, self._say)
        while True:
            self._received_signals = set()
            started_at = time.monotonic()
            with (
                process.make_proof_folder(self.shared_folder) as proof_folder,
                Watch(places, attempt, proof_folder, changes, self._say) as watch,
            ):
                poll = watch.look if places.follows_files else None  # offers the ranks a change if hosts change
                command = self.make_command(attempt)
                code = process.wait_for_ranks(command, proof_folder, self._received_signals, _REPLACEMENTS, poll)
                end = run_end.read_end(proof_folder)
                kind = judge_end(code, end, offers.has_change(proof_folder), self._received_signals)
                if places.follows_files:
                    watch.look()  # reads the change, which the ranks may have written after the last call
            if kind == CHANGED:
                if watch.change is not None:  # the ranks left for a change: make it
                    attempt = changes.make_change(watch.change, watch.changed_at, attempt, watch.make_changed_attempt)
                    continue
                kind = LOST  # the change cannot be read
            # If the attempt failed before its first step after a change, the change may be the cause: return to the
            # attempt before the change.
            if kind in (LOST, OWN_CODE) and (previous_attempt := changes.give_up_change(explain_end(code))) is not None:
                attempt = previous_attempt
                continue
            if kind == OWN_CODE and code > 128 and end.is_complete:
                self._say(
                    f"{explain_end(code)} after all ranks had reached the end of the script, and the first rank had "
                    "exited normally. Training and files are complete: the run is not restarted"
                )
            if kind != LOST:
                return kind, code
            changes.forget_last()  # the hosts to which undoing it would return may be lost
            self._losses.append(explain_end(code))
            if "SLURM_JOB_ID" in os.environ:
                # A Slurm step that lost a host keeps its cores until Slurm notices, which may take minutes.
                os.environ["SLURM_OVERLAP"] = "1"
            loss_text = f"{self._losses[-1]} after {time.monotonic() - started_at:.0f} s"
            if len(self._losses) > self.restarts:
                if lost_hosts := places.describe_lost_hosts():
                    loss_text += f" ({lost_hosts})"
                if self.restarts:
                    restarts_text = format_count(self.restarts, "restart")
                    loss_text += f"; given up after {restarts_text}: {_list_losses(self._losses)}"
                self._say(f"{loss_text}. The same command goes on from {self.state}")
                return kind, code
            pause = compute_pause(len(self._losses))
            self._say(f"{loss_text}; restart {len(self._losses)} of {self.restarts} in {pause:.0f} s")
            time.sleep(pause)
            attempt = self._make_next_attempt(attempt)

    def _make_next_attempt(self, attempt: Attempt) -> Attempt:
        """The attempt after the loss of `attempt`, on the hosts that answer."""
        places = self.places
        try:
            known_hosts = places.read_hosts()
        except (OSError, ValueError) as error:
            self._say(f"--adapt: the list of hosts is unchanged: {error}")
            known_hosts = places.known
        if len(known_hosts) < 2:  # no host can be left out, but the slots of the only one may have changed in its file
            return places.make_attempt(known_hosts, attempt.strategy) if places.follows_files else attempt
        answering_hosts = places.find_answering()
        if not answering_hosts or len(answering_hosts) == len(known_hosts):
            return places.make_attempt(known_hosts, attempt.strategy)
        next_attempt = places.make_attempt(answering_hosts, attempt.strategy)
        answering_names = [host.name for host in answering_hosts]
        missing_names = ", ".join(host.name for host in known_hosts if host.name not in answering_names)
        ranks_text = format_count(next_attempt.ranks, "rank")
        self._say(f"no answer from {missing_names}; continuing with {ranks_text} on {', '.join(answering_names)}")
        return next_attempt

    def _report_interrupt(self, signals: set[int]) -> int:
        """Report an interrupt by a person. Its exit code is not 75, for which a batch system would requeue the run."""
        code, name = process.compute_signal_exit_code(signals), signal.Signals(min(signals)).name
        self._say(f"interrupted by {name} (exit code {code}); the same command {self._describe_next_run()}")
        return code

    def _describe_next_run(self) -> str:
        files = os.listdir(self.state) if os.path.isdir(self.state) else []
        is_saved = any(name.startswith(("state-", "end-")) for name in files)
        return f"goes on from {self.state}" if is_saved else "starts over, because no state was saved yet"


class _StopRequest(Exception):
    """This process received a signal that asks it to end. The argument is the number of the signal."""


def _raise_request(number: int, _frame: Any) -> None:
    raise _StopRequest(number)


def _describe_end(kind: str, code: int) -> str:
    if kind == COMPLETED:
        return "ended well"
    return f"asked to end (exit code {EXIT_REQUEUE})" if kind == STOPPED else f"ended with exit code {code}"


def _list_losses(losses: Sequence[str]) -> str:
    return "; ".join(f"{count} times {reason}" if count > 1 else reason for reason, count in Counter(losses).items())
