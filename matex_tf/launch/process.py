"""Run mpirun for `matex run` as a shell would: mpirun owns the output and the terminal, and receives all signals."""

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

_FORWARDED = (
    signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP,
    signal.SIGCONT,
)  # fmt: skip
STOP_REQUESTS = {signal.SIGTERM, signal.SIGUSR1}
"""Signals that ask a run with saved state to end and to resume later."""
# Signals by which a person, or a system that does not know MATEX_STATE, ends a run. The exit code is then the shell's
# for the signal.
_FATAL = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM}
_SI_KERNEL = 128  # sent by the kernel, like terminal signals, to the whole group, and thus also to mpirun
_TICK, _NO_LIMIT = 0.2, 86400.0  # seconds
_PREFIX = "matex_tf-run-"


@contextlib.contextmanager
def make_proof_folder(shared: str | os.PathLike | None) -> Iterator[str]:
    """Create a private folder for the records that prove the run's success; MATEX_PROOF names it. In `shared` if ranks
    run on other hosts.
    """
    temp_folders.sweep_folders(_PREFIX, shared, may_remove=shared_memory.remove_files)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=shared) as folder:
        temp_folders.hold_folder(folder)
        os.environ["MATEX_PROOF"] = folder
        try:
            yield folder
        finally:
            del os.environ["MATEX_PROOF"]
            temp_folders.remove_noted(folder)  # folders of killed ranks
            shared_memory.remove_files(folder, even_used=True)  # left only if mpirun was killed


def hear_children() -> None:
    """Reset the handling of SIGCHLD: a daemon may have started this process with the signal ignored."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def run_to_end(command: Sequence[str], folder: str, describe_gone: Callable[[], str] = lambda: "") -> int:
    """Run mpirun. Returns its exit code; `EXIT_UNPROVED` instead of a 0 without proof in `folder`.

    The exit code of a run that a signal ended is 128 plus the signal's number; mpirun's own would be 1. `describe_gone`
    names lost hosts if the ranks give no other reason.
    """
    heard: set[int] = set()
    code = wait_for_ranks(command, folder, heard)
    end = run_end.read_end(folder)
    if code == 0 and end.asks_again:
        return EXIT_REQUEUE
    if code == 0 and end.is_proved:
        return 0
    if fatal := heard & _FATAL:
        return compute_signal_exit_code(fatal)
    is_explained = (end.cause and not end.cause.follows) or end.is_announced or rank_ends.find_signal(code)
    if not is_explained and (gone := describe_gone()):
        print(f"matex: {gone} (exit code {code or EXIT_UNPROVED})", file=sys.stderr)
    if code != 0:
        return code
    if end.has_come_to_end:
        why = "a rank was lost after the end of the script, before the script's files were complete"
    else:
        why = (
            "the ranks did not agree that all had reached the end of the script: a rank or a host was lost, or "
            "the script was never started"
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
    """Run mpirun and print the first error that ranks left in `folder`, or the first rank that ended without one.

    Returns mpirun's exit code. `heard` collects the received signals. The other arguments are those of
    `wait_for_command`.
    """
    with rank_ends.RankEnds(folder) as ends:

        def look_around() -> bool:
            ranks_are_missing = ends.look_for_ranks()
            return (look is not None and look()) or ranks_are_missing

        def note_signal(number: int) -> None:
            heard.add(number)
            if number in STOP_REQUESTS:
                with contextlib.suppress(OSError):  # the signal is passed on in any case; only its name is lost
                    rank_records.note_request(folder, signal.Signals(number).name)

        code = wait_for_command(command, instead, note_signal, look_around)
        end, first = run_end.read_end(folder), ends.find_first()
    code = end.correct_code(code)
    # The blank line separates the text from mpirun's, which may end inside a line.
    if end.cause:
        print(f"\n{end.cause.text}", end="", file=sys.stderr, flush=True)
    elif first and not heard and code != EXIT_STALLED and not end.is_announced:
        print(f"\nmatex: {rank_ends.describe_end(first, code)}", file=sys.stderr, flush=True)
    return code


def compute_signal_exit_code(signals: set[int]) -> int:
    """A shell's exit code for a process that one of `signals` has ended."""
    return 128 + min(signals)


def wait_for_command(
    command: Sequence[str],
    instead: Mapping[int, int] | None = None,
    note: Callable[[int], object] = lambda number: None,
    look: Callable[[], bool] = lambda: False,
) -> int:
    """Run `command` in this process group, so that it receives the group's signals from a terminal or a shell.

    Signals to this process alone are passed on. Signals that are ignored from the start, as by nohup, remain ignored by
    both. A stop from the keyboard stops both, and both continue.

    With `instead`, `command` runs in its own session, and each signal is passed on as the signal that `instead` names.
    `note` is called with each signal before it is passed on, and `look` at intervals until it returns False.
    """
    watched = {number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched | {signal.SIGCHLD})
    try:
        with Witness(watched) as witness:
            child = subprocess.Popen(
                command,
                preexec_fn=child_process.make_preparation(before, os.getpid()),
                start_new_session=instead is not None,
            )
            while child.poll() is None:
                found = signal.sigtimedwait(watched | {signal.SIGCHLD}, _TICK if look() else _NO_LIMIT)
                if found is None or found.si_signo == signal.SIGCHLD:
                    continue
                note(found.si_signo)
                has_received = instead is None and (
                    found.si_code == _SI_KERNEL or witness.has_reached_group(found.si_signo)
                )
                if not has_received and child.poll() is None:
                    child.send_signal((instead or {}).get(found.si_signo, found.si_signo))
                if found.si_signo == signal.SIGTSTP:
                    os.kill(os.getpid(), signal.SIGSTOP)
        while (pending := signal.sigtimedwait(watched, 0)) is not None:
            note(pending.si_signo)  # the command has ended
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode
