"""Runs mpirun for `matex run` as a shell would: output and terminal are mpirun's own, and signals reach it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence

from matex_tf.launch import rank_ends, run_end
from matex_tf.launch.signal_origin import Witness
from matex_tf.runtime import rank_records, shared_memory, temp_folders
from matex_tf.world import child_process
from matex_tf.world.exit_codes import EXIT_REQUEUE, EXIT_STALLED, EXIT_UNPROVED

_PASSED_ON = (
    signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP,
    signal.SIGCONT,
)  # fmt: skip
ASKS = {signal.SIGTERM, signal.SIGUSR1}
"""By what a run is asked to end, to go on later, where its state is kept."""
# What a person, or a system that is not told of MATEX_STATE, ends a run with; its exit code is then a shell's for it.
_ENDING = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM}
_SI_KERNEL = 128  # sent by the kernel, as the terminal's signals are: to mpirun, too, which is in the same group
_TICK, _LONG = 0.2, 86400.0  # seconds
_PREFIX = "matex_tf-run-"


@contextlib.contextmanager
def make_proof_folder(shared: str | os.PathLike | None) -> Iterator[str]:
    """A new private folder for the proof, of which MATEX_PROOF tells the ranks; in `shared` if some are elsewhere."""
    temp_folders.sweep_folders(_PREFIX, shared, may_go=shared_memory.remove_files)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=shared) as folder:
        temp_folders.hold_folder(folder)
        os.environ["MATEX_PROOF"] = folder
        try:
            yield folder
        finally:
            del os.environ["MATEX_PROOF"]
            temp_folders.remove_noted(folder)  # of ranks that were killed
            shared_memory.remove_files(folder, even_used=True)  # mpirun has, if it was not killed


def hear_children() -> None:
    """Have the system tell of children that end, which it does not where a daemon started this process to ignore it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def run_to_end(command: Sequence[str], folder: str, describe_gone: Callable[[], str] = lambda: "") -> int:
    """mpirun's exit code; `EXIT_UNPROVED` in place of a 0 for which there is no proof in `folder`.

    That of a run that was ended by a signal is 128 and its number; mpirun's own would be 1. `describe_gone` is asked
    for lost hosts where the ranks give no other reason.
    """
    heard: set[int] = set()
    code = wait_for_ranks(command, folder, heard)
    end = run_end.read_end(folder)
    if code == 0 and end.asks_again:
        return EXIT_REQUEUE
    if code == 0 and end.is_proved:
        return 0
    if ended := heard & _ENDING:
        return compute_signal_exit_code(ended)
    is_explained = (end.cause and not end.cause.follows) or end.is_announced or rank_ends.find_signal(code)
    if not is_explained and (gone := describe_gone()):
        print(f"matex: {gone} (exit code {code or EXIT_UNPROVED})", file=sys.stderr)
    if code != 0:
        return code
    if end.has_come_to_end:
        why = "a rank was lost after the end of the script, before all that the script has written was on the disk"
    else:
        why = (
            "the ranks never agreed that all of them had come to the end of the script: a rank or a host was lost on "
            "the way, or the script was never started"
        )
    print(f"matex: mpirun ended with exit code 0, but {why} (exit code {EXIT_UNPROVED})", file=sys.stderr)
    return EXIT_UNPROVED


def wait_for_ranks(
    command: Sequence[str],
    folder: str,
    heard: set[int],
    instead: Mapping[int, int] | None = None,
    look: Callable[[], bool] | None = None,
) -> int:
    """mpirun's exit code; shows the first error that ranks have left in `folder`, or who ended first without one.

    `heard` collects the signals that come. The other arguments are those of `wait_for_command`.
    """
    with rank_ends.RankEnds(folder) as ends:

        def look_around() -> bool:
            ranks_are_missing = ends.look_for_ranks()
            return (look is not None and look()) or ranks_are_missing

        def note_signal(number: int) -> None:
            heard.add(number)
            if number in ASKS:
                with contextlib.suppress(OSError):  # the signal is passed on, whatever name the ranks then tell
                    rank_records.note_request(folder, signal.Signals(number).name)

        code = wait_for_command(command, instead, note_signal, look_around)
        end, first = run_end.read_end(folder), ends.find_first()
    code = end.correct_code(code)
    # The blank line parts it from what mpirun has to say, which may end within a line.
    if end.cause:
        print(f"\n{end.cause.text}", end="", file=sys.stderr, flush=True)
    elif first and not heard and code != EXIT_STALLED and not end.is_announced:
        print(f"\nmatex: {rank_ends.describe_end(first, code)}", file=sys.stderr, flush=True)
    return code


def compute_signal_exit_code(signals: set[int]) -> int:
    """The exit code of what one of `signals` has ended, as a shell has it."""
    return 128 + min(signals)


def wait_for_command(
    command: Sequence[str],
    instead: Mapping[int, int] | None = None,
    note: Callable[[int], object] = lambda number: None,
    look: Callable[[], bool] = lambda: False,
) -> int:
    """Run `command` in this process's own group, so that it has what the terminal or a shell sends to the group.

    What is sent to this process alone is passed on; what it was started to ignore, as by nohup, both ignore. Stopped
    from the keyboard, both stop, and both go on.

    With `instead`, `command` is in a session of its own, and each signal is passed on as what stands there for it.
    `note` is called with each signal that comes, before it is passed on; `look` now and then, until it gives False.
    """
    watched = {number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched | {signal.SIGCHLD})
    try:
        with Witness(watched) as witness:
            child = subprocess.Popen(
                command,
                preexec_fn=child_process.make_preparation(before, os.getpid()),
                start_new_session=instead is not None,
            )
            while child.poll() is None:
                found = signal.sigtimedwait(watched | {signal.SIGCHLD}, _TICK if look() else _LONG)
                if found is None or found.si_signo == signal.SIGCHLD:
                    continue
                note(found.si_signo)
                has_it = instead is None and (found.si_code == _SI_KERNEL or witness.has_reached_group(found.si_signo))
                if not has_it and child.poll() is None:
                    child.send_signal((instead or {}).get(found.si_signo, found.si_signo))
                if found.si_signo == signal.SIGTSTP:
                    os.kill(os.getpid(), signal.SIGSTOP)
        while (late := signal.sigtimedwait(watched, 0)) is not None:
            note(late.si_signo)  # there is nobody left to pass it on to
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode
