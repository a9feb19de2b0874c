"""Run mpirun for `matex run` as a shell would: mpirun owns the output and the terminal, and receives all signals.

`run_to_end` is a run without restarts; `launch.restarts` calls `wait_for_ranks` for each attempt.
"""

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
STOP_REQUESTS = {signal.SIGTERM, signal.SIGUSR1}  # signals that ask a run to save its state and end, to resume later
# Signals that end a run without saved state. The exit code is then 128 plus the number of the signal.
_FATAL = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM}
_SI_KERNEL = 128  # the si_code of a signal that the kernel sends, as for Ctrl-C: to the whole group, mpirun included
_TICK = 0.2  # seconds between two calls of `poll`
_NO_LIMIT = 86400.0  # seconds to wait for a signal if `poll` need not be called again
_PREFIX = "matex_tf-run-"


@contextlib.contextmanager
def make_proof_folder(shared_folder: str | os.PathLike | None) -> Iterator[str]:
    """Context with the proof folder, which MATEX_PROOF names; in `shared_folder` if ranks run on other hosts."""
    temp_folders.sweep_folders(_PREFIX, shared_folder, may_remove=shared_memory.remove_files)
    # Ranks that still end may write into the folder while it is removed. Then a later run sweeps it.
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=shared_folder, ignore_cleanup_errors=True) as folder:
        temp_folders.hold_folder(folder)
        os.environ["MATEX_PROOF"] = folder
        try:
            yield folder
        finally:
            del os.environ["MATEX_PROOF"]
            temp_folders.remove_noted(folder)  # folders of killed ranks
            shared_memory.remove_files(folder, even_used=True)  # left only if mpirun was killed


def run_to_end(command: Sequence[str], folder: str, describe_lost_hosts: Callable[[], str] = lambda: "") -> int:
    """Run mpirun. Returns its exit code; `EXIT_UNPROVED` instead of 0 if the records in `folder` do not prove success.

    The exit code of a run that a signal ended is 128 plus the signal's number; mpirun's own would be 1.
    `describe_lost_hosts` names lost hosts; it is called if the ranks give no other reason.
    """
    received_signals: set[int] = set()
    code = wait_for_ranks(command, folder, received_signals)
    end = run_end.read_end(folder)
    if code == 0 and end.asks_again:  # the run was asked to end, has saved its state, and is to be started again
        return EXIT_REQUEUE
    if code == 0 and end.proves_success:
        return 0
    if fatal_signals := received_signals & _FATAL:
        return compute_signal_exit_code(fatal_signals)
    # Lost hosts are not the reason if there is an error that does not follow from another rank's, a report of the
    # ranks, or a signal that ended mpirun.
    is_explained = (end.cause and not end.cause.follows) or end.is_reported or rank_ends.find_signal(code)
    if not is_explained and (lost_hosts := describe_lost_hosts()):
        print(f"matex: {lost_hosts} (exit code {code or EXIT_UNPROVED})", file=sys.stderr)
    if code != 0:
        return code
    if end.script_has_ended:
        reason = "a rank was lost after the end of the script, before the script's files were complete"
    else:
        reason = (
            "the ranks did not agree that all had reached the end of the script: a rank or a host was lost, or "
            "the script was never started"
        )
    print(f"matex: mpirun ended with exit code 0, but {reason} (exit code {EXIT_UNPROVED})", file=sys.stderr)
    return EXIT_UNPROVED


def wait_for_ranks(
    command: Sequence[str],
    folder: str,
    received_signals: set[int],
    replacements: Mapping[int, int] | None = None,
    poll: Callable[[], bool] | None = None,
) -> int:
    """Run mpirun and print the first error that ranks left in `folder`, or the first rank that ended without one.

    Returns mpirun's exit code, corrected by the ranks' records.

    Args:
        received_signals: collects the numbers of the received signals.
        replacements, poll: as for `wait_for_command`.
    """
    with rank_ends.RankEnds(folder) as ends:

        def poll_ranks() -> bool:
            ranks_are_missing = ends.look_for_ranks()
            return (poll is not None and poll()) or ranks_are_missing

        def note_signal(number: int) -> None:
            received_signals.add(number)
            if number in STOP_REQUESTS:
                with contextlib.suppress(OSError):  # the signal is passed on in any case; only its name is lost
                    rank_records.note_request(folder, signal.Signals(number).name)

        code = wait_for_command(command, replacements, note_signal, poll_ranks)
        end, first_ended = run_end.read_end(folder), ends.find_first()
    code = end.correct_code(code)
    # The blank line separates the text from mpirun's, which may end inside a line.
    if end.cause:
        print(f"\n{end.cause.text}", end="", file=sys.stderr, flush=True)
    # EXIT_STALLED: ranks have waited too long for another rank, and report it themselves.
    elif first_ended and not received_signals and code != EXIT_STALLED and not end.is_reported:
        print(f"\nmatex: {rank_ends.describe_end(first_ended, code)}", file=sys.stderr, flush=True)
    return code


def compute_signal_exit_code(signals: set[int]) -> int:
    """A shell's exit code for a process that one of `signals` has ended."""
    return 128 + min(signals)


def wait_for_command(
    command: Sequence[str],
    replacements: Mapping[int, int] | None = None,
    on_signal: Callable[[int], object] = lambda number: None,
    poll: Callable[[], bool] = lambda: False,
) -> int:
    """Run `command` in this process group, so that it receives the group's signals from a terminal or a shell.

    Signals to this process alone are passed on. Signals that are ignored from the start, as by nohup, remain ignored by
    both. A stop from the keyboard stops both, and both continue.

    Args:
        replacements: if given, `command` runs in its own session, and each signal is passed on as the signal that
            this mapping names, or as itself.
        on_signal: called with the number of each signal before the signal is passed on.
        poll: called several times a second until it returns False.
    """
    watched_signals = {number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN}
    mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, watched_signals | {signal.SIGCHLD})
    try:
        with Witness(watched_signals) as witness:
            child = subprocess.Popen(
                command,
                preexec_fn=child_process.make_preparation(mask_before, os.getpid()),
                start_new_session=replacements is not None,
            )
            while child.poll() is None:
                timeout = _TICK if poll() else _NO_LIMIT
                signal_info = signal.sigtimedwait(watched_signals | {signal.SIGCHLD}, timeout)
                if signal_info is None or signal_info.si_signo == signal.SIGCHLD:
                    continue
                on_signal(signal_info.si_signo)
                # `witness`, another process of the group, tells whether a signal was sent to the whole group. Then the
                # command has it already. A command in a session of its own gets no signal of this group.
                child_has_signal = replacements is None and (
                    signal_info.si_code == _SI_KERNEL or witness.has_reached_group(signal_info.si_signo)
                )
                if not child_has_signal and child.poll() is None:
                    child.send_signal((replacements or {}).get(signal_info.si_signo, signal_info.si_signo))
                if signal_info.si_signo == signal.SIGTSTP:  # it is blocked here, and thus has not stopped this process
                    os.kill(os.getpid(), signal.SIGSTOP)
        # Signals that arrived after the command had ended are noted, too.
        while (pending_info := signal.sigtimedwait(watched_signals, 0)) is not None:
            on_signal(pending_info.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask_before)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode
