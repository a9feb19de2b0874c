"""`matex run --restarts`: a run that is lost is started again, on the hosts that are left; what it says and ends with.

docs/reliability.md says when a run is lost, docs/adapt.md when it goes on otherwise though none was. `run_state` keeps
the state that it goes on from.
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
# mpirun ends the ranks of whoever sends it SIGTERM; SIGUSR1 it passes on to them.
_INSTEAD: dict[int, int] = {signal.SIGTERM: signal.SIGUSR1}
# Of the jobs that a batch system makes of one script: they have other numbers, or the same and another place.
_PLACES = ("SLURM_ARRAY_TASK_ID", "PBS_ARRAY_INDEX", "PBS_ARRAYID", "LSB_JOBINDEX")
_PERSONS = {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP}


def name_state_folder(target: Sequence[str]) -> str:
    """Where the state of a run of `target` is kept: in the current folder, of the same name when it comes back."""
    job = [f"{name}={os.environ[name]}" for name in (*ALLOCATIONS, *_PLACES) if name in os.environ]
    return os.path.abspath(_NAME + hashlib.sha256("\0".join([*target, *job]).encode()).hexdigest()[:12])


def judge_end(code: int, end: RunEnd, has_changed: bool, heard: set[int]) -> str:
    """The kind of the end of a run, by mpirun's exit code, the records of the ranks, and the signals `heard`.

    `has_changed`: whether the ranks have left for a change (`--adapt=ranks`).
    """
    # Ranks that were asked to end have ended together, too, and mpirun may call that 0: where Slurm preempts a job it
    # asks ranks and mpirun's daemons alike.
    has_left = has_changed or end.asks_again
    if code == 0 and end.is_proved and not has_left:
        return WELL
    if heard & _PERSONS:  # mpirun then asks the ranks to end, as a batch system would
        return INTERRUPTED
    if has_changed and not heard & process.ASKS and not end.asks_again:
        return CHANGED
    if has_left:
        return ASKED
    if end.is_proved or end.has_chosen(code):
        return OWN
    if heard & process.ASKS:
        return ASKED
    # 0 without the ranks' word is a host that was lost, at whatever moment; above 128 is a signal.
    if code > 0 and (end.has_failed(code) or (code <= 128 and not end.has_begun)):
        return OWN
    return LOST


def explain_end(code: int) -> str:
    """Why a run was lost, in words."""
    if name := rank_ends.find_signal(code):
        return f"a rank was killed by {name} (exit code {code})"
    known = {
        0: "a rank or a host was lost, though mpirun ended with exit code 0",
        EXIT_STALLED: f"ranks waited too long for others (exit code {EXIT_STALLED})",
    }
    return known.get(code, f"a rank or a host was lost (exit code {code})")


def compute_pause(restart: int) -> float:
    """Seconds before restart number `restart`, from 1: a fault that lasts a while has time to pass."""
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
    """Start `command(attempt)` until it has ended well, at most `restarts` times again; the exit code.

    Args:
        places: where; whether the ranks may have it changed, too.
        tell: is told what is said to the user.
        may_choose: whether the ranks may choose their strategy.
    """

    def say(text: str) -> None:
        print(f"matex: {text}", file=sys.stderr, flush=True)
        tell(text)

    lost: list[str] = []
    try:
        with _raise_on_signals():  # at times there is no run that would be told
            end, code, heard = _run_attempts(places, restarts, command, shared, state, say, may_choose, lost)
    except _AskedError as asked:
        if asked.number in _PERSONS:
            return _report_interrupt({asked.number}, state, say)
        name = signal.Signals(asked.number).name
        say(f"{name} before the restart; the same command goes on from {state} (exit code {EXIT_REQUEUE})")
        return EXIT_REQUEUE
    if end == INTERRUPTED:
        return _report_interrupt(heard & _PERSONS, state, say)
    if end == LOST:
        return code or EXIT_UNPROVED
    if end == WELL:
        _remove_state(state)
    if end == ASKED and code != 0:
        say(
            f"the run was asked to end, and its ranks were ended for that (exit code {EXIT_REQUEUE}). What "
            f"mpirun says of an abort or a signal is that end; the same command {_describe_next_run(state)}"
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
    """Start the run until it is not to be started again: what its end was, mpirun's exit code, the signals heard.

    `lost` gets the reasons of losses; the other arguments are those of `run_with_restarts`.
    """
    attempt = places.first
    changes = Changes(places, may_choose, say)
    while True:
        heard: set[int] = set()
        began = time.monotonic()
        with process.make_proof_folder(shared) as folder, Watch(places, attempt, folder, changes, say) as watch:
            look = watch.look if places.follows else None
            code = process.wait_for_ranks(command(attempt), folder, heard, _INSTEAD, look)
            said = run_end.read_end(folder)
            end = judge_end(code, said, offers.has_change(folder), heard)
            if places.follows:
                watch.look()
        if end == CHANGED and watch.change is None:
            end = LOST  # to what cannot be read
        if end == CHANGED and watch.change is not None:
            attempt = changes.make_change(watch.change, watch.changed_at, attempt, watch.make_changed_attempt)
            continue
        if end in (LOST, OWN) and (back := changes.give_up_change(explain_end(code))) is not None:
            attempt = back
            continue
        if end == OWN and code > 128 and said.has_ended:
            say(
                f"{explain_end(code)} after all ranks had come to the end of the script, and the first rank had ended "
                "by itself. All is trained and written: the run is not started again"
            )
        if end != LOST:
            return end, code, heard
        changes.forget_last()  # from here on other things may make a difference
        lost.append(explain_end(code))
        if "SLURM_JOB_ID" in os.environ:
            # A step of which a host was lost keeps its cores until Slurm believes that, which may take minutes.
            os.environ["SLURM_OVERLAP"] = "1"
        after = f"{lost[-1]} after {time.monotonic() - began:.0f} s"
        if len(lost) > restarts:
            up = f"; given up after {_count_restarts(restarts)}: {_list_losses(lost)}" if restarts else ""
            gone = places.describe_gone()
            say(f"{after}{f' ({gone})' if gone else ''}{up}. The same command goes on from {state}")
            return end, code, heard
        wait = compute_pause(len(lost))
        say(f"{after}; restart {len(lost)} of {restarts} in {wait:.0f} s")
        time.sleep(wait)
        attempt = _make_next_attempt(attempt, places, say)


def _report_interrupt(signals: set[int], state: str, say: Callable[[str], None]) -> int:
    """A person's end is not the batch system's: what puts a run back that ends with 75 would put back this one."""
    code, name = process.compute_signal_exit_code(signals), signal.Signals(min(signals)).name
    say(f"interrupted by {name} (exit code {code}); the same command {_describe_next_run(state)}")
    return code


def _describe_next_run(state: str) -> str:
    kept = os.path.isdir(state) and any(name.startswith(("state-", "end-")) for name in os.listdir(state))
    return f"goes on from {state}" if kept else "begins anew, as nothing was kept yet"


class _AskedError(Exception):
    """This process was asked to end, by the signal of this number."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def _raise_on_signals() -> Iterator[None]:
    """Within it, where there is no run that would be told, a signal by which to end raises `_AskedError`."""

    def raise_asked(number: int, _frame: Any) -> None:
        raise _AskedError(number)

    before = {number: signal.getsignal(number) for number in process.ASKS | _PERSONS}
    before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    try:
        for number in before:
            signal.signal(number, raise_asked)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _make_next_attempt(attempt: Attempt, places: Places, say: Callable[[str], None]) -> Attempt:
    """The next attempt: on those of the hosts that answer."""
    try:
        known = places.read_hosts()
    except (OSError, ValueError) as error:
        say(f"--adapt: the hosts stay as they are: {error}")
        known = places.known
    if len(known) < 2:
        return places.make_attempt(known, attempt.strategy) if places.follows else attempt
    left = places.find_answering()
    if not left or len(left) == len(known):
        return places.make_attempt(known, attempt.strategy)
    following = places.make_attempt(left, attempt.strategy)
    ranks, names = following.ranks, [host.name for host in left]
    gone = ", ".join(host.name for host in known if host.name not in names)
    say(f"no answer from {gone}; going on with {ranks} rank{'' if ranks == 1 else 's'} on {', '.join(names)}")
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
    if (lock := folder.hold_lock()) is not None:  # else it is another run's by now
        folder.close_folder(remove=True)
        os.close(lock)
