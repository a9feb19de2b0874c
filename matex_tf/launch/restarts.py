"""`matex run --restarts`: restart a lost run on the remaining hosts, and report the outcome.

docs/reliability.md defines when a run is lost, and docs/adapt.md when a run restarts with another number of ranks.
`resilience.run_state` saves the state from which a run resumes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from matex_tf.adapt import offers
from matex_tf.launch import process, rank_ends, run_end
from matex_tf.launch.hosts.changing import Changes
from matex_tf.launch.hosts.places import Attempt, Places
from matex_tf.launch.hosts.watch import Watch
from matex_tf.launch.run_end import RunEnd
from matex_tf.resilience import state_files
from matex_tf.world.exit_codes import EXIT_REQUEUE, EXIT_STALLED, EXIT_UNPROVED
from matex_tf.world.mpirun_options import ALLOCATIONS

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
WELL, OWN, ASKED, LOST, INTERRUPTED, CHANGED = "well", "own", "asked", "lost", "interrupted", "changed"
_NAME = ".matex_tf-state-"
# mpirun kills the ranks after SIGTERM, but forwards SIGUSR1 to them.
_REPLACEMENTS: dict[int, int] = {signal.SIGTERM: signal.SIGUSR1}
# They distinguish the jobs that a batch system makes from one script, by job number or by array index.
_ARRAY_VARIABLES = ("SLURM_ARRAY_TASK_ID", "PBS_ARRAY_INDEX", "PBS_ARRAYID", "LSB_JOBINDEX")
_INTERRUPTS = {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP}


def name_state_folder(target: Sequence[str]) -> str:
    """The folder for the state of a run of `target`: in the current folder, with the same name after a requeue."""
    job = [f"{name}={os.environ[name]}" for name in (*ALLOCATIONS, *_ARRAY_VARIABLES) if name in os.environ]
    return os.path.abspath(_NAME + hashlib.sha256("\0".join([*target, *job]).encode()).hexdigest()[:12])


def judge_end(code: int, end: RunEnd, has_changed: bool, heard: set[int]) -> str:
    """Classify the end of a run, by mpirun's exit code, the ranks' records, and the signals `heard`.

    `has_changed`: the ranks have left for a change (`--adapt=ranks`).
    """
    # Ranks that were asked to end also end together, and mpirun may return 0: when Slurm preempts a job, it signals
    # ranks and mpirun's daemons alike.
    has_left = has_changed or end.asks_again
    if code == 0 and end.is_proved and not has_left:
        return WELL
    if heard & _INTERRUPTS:  # mpirun then asks the ranks to end, as a batch system would
        return INTERRUPTED
    if has_changed and not heard & process.STOP_REQUESTS and not end.asks_again:
        return CHANGED
    if has_left:
        return ASKED
    if end.is_proved or end.has_chosen(code):
        return OWN
    if heard & process.STOP_REQUESTS:
        return ASKED
    # Exit code 0 without proof means a lost host at any time; a code above 128 means a signal.
    if code > 0 and (end.has_failed(code) or (code <= 128 and not end.has_begun)):
        return OWN
    return LOST


def explain_end(code: int) -> str:
    """The reason for the loss of a run, in words."""
    if name := rank_ends.find_signal(code):
        return f"a rank was killed by {name} (exit code {code})"
    known = {
        0: "a rank or a host was lost, though mpirun ended with exit code 0",
        EXIT_STALLED: f"ranks waited too long for others (exit code {EXIT_STALLED})",
    }
    return known.get(code, f"a rank or a host was lost (exit code {code})")


def compute_pause(restart: int) -> float:
    """Seconds before restart number `restart`, counted from 1. The pause grows, so that a temporary fault can pass."""
    return min(FIRST_PAUSE * 2 ** (restart - 1), LONGEST_PAUSE)


def run_with_restarts(
    places: Places,
    restarts: int,
    command: Callable[[Attempt], Sequence[str]],
    shared: str | os.PathLike | None,
    state: str,
    tell: Callable[[str], None] = lambda text: None,
    may_choose: bool = False,
) -> int:
    """Run `command(attempt)` until it ends successfully, with at most `restarts` restarts. Returns the exit code.

    Args:
        places: the hosts, and whether the ranks may change them.
        tell: receives each message for the user.
        may_choose: the ranks may choose their strategy.
    """

    def say(text: str) -> None:
        print(f"matex: {text}", file=sys.stderr, flush=True)
        tell(text)

    lost: list[str] = []
    try:
        with _raise_on_signals():  # between attempts, no run receives the signals
            end, code, heard = _run_attempts(places, restarts, command, shared, state, say, may_choose, lost)
    except _StopRequest as asked:
        if asked.number in _INTERRUPTS:
            return _report_interrupt({asked.number}, state, say)
        name = signal.Signals(asked.number).name
        say(f"{name} before the restart; the same command goes on from {state} (exit code {EXIT_REQUEUE})")
        return EXIT_REQUEUE
    if end == INTERRUPTED:
        return _report_interrupt(heard & _INTERRUPTS, state, say)
    if end == LOST:
        return code or EXIT_UNPROVED
    if end == WELL:
        _remove_state(state)
    if end == ASKED and code != 0:
        say(
            f"the run was asked to end, and its ranks have ended (exit code {EXIT_REQUEUE}). "
            f"mpirun's message about an abort or a signal reports this end; "
            f"the same command {_describe_next_run(state)}"
        )
    if lost:
        say(f"{_describe_end(end, code)} after {_count_restarts(len(lost))}: {_list_losses(lost)}")
    return EXIT_REQUEUE if end == ASKED else code or (0 if end == WELL else EXIT_UNPROVED)


def _run_attempts(
    places: Places,
    restarts: int,
    command: Callable[[Attempt], Sequence[str]],
    shared: str | os.PathLike | None,
    state: str,
    say: Callable[[str], None],
    may_choose: bool,
    lost: list[str],
) -> tuple[str, int, set[int]]:
    """Run attempts until no restart is due. Returns the kind of the end, mpirun's exit code, and the signals heard.

    `lost` collects the reasons for losses; the other arguments are those of `run_with_restarts`.
    """
    attempt = places.first
    changes = Changes(places, may_choose, say)
    while True:
        heard: set[int] = set()
        began = time.monotonic()
        with process.make_proof_folder(shared) as folder, Watch(places, attempt, folder, changes, say) as watch:
            look = watch.look if places.follows else None
            code = process.wait_for_ranks(command(attempt), folder, heard, _REPLACEMENTS, look)
            run_end_records = run_end.read_end(folder)
            end = judge_end(code, run_end_records, offers.has_change(folder), heard)
            if places.follows:
                watch.look()
        if end == CHANGED and watch.change is None:
            end = LOST  # the change cannot be read
        if end == CHANGED and watch.change is not None:
            attempt = changes.make_change(watch.change, watch.changed_at, attempt, watch.make_changed_attempt)
            continue
        if end in (LOST, OWN) and (previous := changes.give_up_change(explain_end(code))) is not None:
            attempt = previous
            continue
        if end == OWN and code > 128 and run_end_records.has_ended:
            say(
                f"{explain_end(code)} after all ranks had reached the end of the script, and the first rank had exited "
                "normally. Training and files are complete: the run is not restarted"
            )
        if end != LOST:
            return end, code, heard
        changes.forget_last()  # a later loss may have another cause
        lost.append(explain_end(code))
        if "SLURM_JOB_ID" in os.environ:
            # A Slurm step that lost a host keeps its cores until Slurm notices, which may take minutes.
            os.environ["SLURM_OVERLAP"] = "1"
        after = f"{lost[-1]} after {time.monotonic() - began:.0f} s"
        if len(lost) > restarts:
            up = f"; given up after {_count_restarts(restarts)}: {_list_losses(lost)}" if restarts else ""
            missing = places.describe_gone()
            say(f"{after}{f' ({missing})' if missing else ''}{up}. The same command goes on from {state}")
            return end, code, heard
        wait = compute_pause(len(lost))
        say(f"{after}; restart {len(lost)} of {restarts} in {wait:.0f} s")
        time.sleep(wait)
        attempt = _make_next_attempt(attempt, places, say)


def _report_interrupt(signals: set[int], state: str, say: Callable[[str], None]) -> int:
    """Report an interrupt by a person. Its exit code is not 75, for which a batch system would requeue the run."""
    code, name = process.compute_signal_exit_code(signals), signal.Signals(min(signals)).name
    say(f"interrupted by {name} (exit code {code}); the same command {_describe_next_run(state)}")
    return code


def _describe_next_run(state: str) -> str:
    kept = os.path.isdir(state) and any(name.startswith(("state-", "end-")) for name in os.listdir(state))
    return f"goes on from {state}" if kept else "starts over, because no state was saved yet"


class _StopRequest(Exception):
    """This process received a signal that asks it to end."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def _raise_on_signals() -> Iterator[None]:
    """Context between attempts: a signal that asks to end raises `_StopRequest`."""

    def raise_asked(number: int, _frame: Any) -> None:
        raise _StopRequest(number)

    before = {number: signal.getsignal(number) for number in process.STOP_REQUESTS | _INTERRUPTS}
    before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    try:
        for number in before:
            signal.signal(number, raise_asked)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _make_next_attempt(attempt: Attempt, places: Places, say: Callable[[str], None]) -> Attempt:
    """The next attempt, on the hosts that answer."""
    try:
        known = places.read_hosts()
    except (OSError, ValueError) as error:
        say(f"--adapt: the list of hosts is unchanged: {error}")
        known = places.known
    if len(known) < 2:
        return places.make_attempt(known, attempt.strategy) if places.follows else attempt
    left = places.find_answering()
    if not left or len(left) == len(known):
        return places.make_attempt(known, attempt.strategy)
    following = places.make_attempt(left, attempt.strategy)
    ranks, names = following.ranks, [host.name for host in left]
    missing = ", ".join(host.name for host in known if host.name not in names)
    say(f"no answer from {missing}; continuing with {ranks} rank{'' if ranks == 1 else 's'} on {', '.join(names)}")
    return following


def _describe_end(end: str, code: int) -> str:
    if end == WELL:
        return "ended well"
    return f"asked to end (exit code {EXIT_REQUEUE})" if end == ASKED else f"ended with exit code {code}"


def _count_restarts(number: int) -> str:
    return f"{number} restart" + ("" if number == 1 else "s")


def _list_losses(lost: Sequence[str]) -> str:
    return "; ".join(f"{count} times {why}" if count > 1 else why for why, count in Counter(lost).items())


def _remove_state(state: str) -> None:
    if not Path(state).is_dir():
        return
    folder = state_files.Folder(state)
    if (lock := folder.hold_lock()) is not None:  # otherwise another run already uses the folder
        folder.close_folder(remove=True)
        os.close(lock)
