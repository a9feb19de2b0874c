"""Starts child processes and makes temporary folders, each in a context, for `matex plan` and `matex run --check`.

The end of a context, also by an error or a signal, ends the process or removes the folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from matex_tf.runtime import temp_folders
from matex_tf.world import child_process

PREFIX = "matex-plan-"
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a plan."""
PATIENCE = 10.0
"""Seconds that mpirun has to end its ranks, which may be on other hosts, before it is killed."""


@contextlib.contextmanager
def catch_signals() -> Iterator[None]:
    """A context in which a terminating signal raises SystemExit, so that the contexts below clean up.

    Raises:
        SystemExit: with the shell's exit code for the signal.
    """

    def end_plan(received_signal: int, frame: FrameType | None) -> None:
        for ending_signal in ENDING:
            signal.signal(ending_signal, signal.SIG_IGN)  # cleaning up for the first signal is not interrupted
        with contextlib.suppress(OSError):  # the terminal may be gone
            print(f"matex plan: ended by {signal.Signals(received_signal).name}", file=sys.stderr, flush=True)
        raise SystemExit(128 + received_signal)

    with child_process.handle_signals(ENDING, end_plan):
        yield


@contextlib.contextmanager
def make_place(shared: str | os.PathLike[str] | None = None, prefix: str = PREFIX) -> Iterator[Path]:
    """A new folder during the context, in `shared` or among temporary files.

    First removes folders of killed commands, whose names begin with the same `prefix`.
    """
    temp_folders.sweep_folders(prefix, shared)
    # `lock_descriptor` locks the folder. While it is open, other commands do not remove the folder.
    path, lock_descriptor = temp_folders.make_folder(prefix, tempfile.gettempdir() if shared is None else shared)
    try:
        yield Path(path)
    finally:
        _remove_folder(path)
        os.close(lock_descriptor)


def _remove_folder(path: str) -> None:
    """Remove the folder, even if processes that were just killed are still creating files there.

    A folder that cannot be removed, such as one with read-only folders of the script, ends no plan: a line names it.
    """
    failure: OSError | None = None
    for _ in range(20):
        try:
            return shutil.rmtree(path)
        except OSError as error:
            failure = error
            time.sleep(0.05)
    print(f"matex: {path} could not be removed: {failure}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def start_process(command: Sequence[str], patience: float = 0.0, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a process in a session of its own. At the end of the context, all processes of the session are killed.

    Args:
        patience: seconds that it has to end by itself, after SIGTERM.
        options: further arguments of `subprocess.Popen`.
    """
    # Block signals until the `finally` below would kill the process. Otherwise a signal in between would leave it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        prepare = child_process.make_preparation(mask, os.getpid())  # in the child: `mask`, and SIGTERM if `plan` ends
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=prepare, **options
        )
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            yield process
        finally:
            _end_process(process, patience)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _end_process(process: subprocess.Popen[Any], patience: float) -> None:
    """Kill all processes of the session. Before, `process` has `patience` seconds to end by itself."""
    try:
        if patience and process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience)
    finally:  # also after a signal in between
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        _kill_other_groups(process.pid)
        process.wait()


def _kill_other_groups(session: int) -> None:
    """Kill the processes of a session outside of its first process group, such as the ranks of mpirun."""
    for process_folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            # The fields after the name: state, parent, process group, session.
            if int((process_folder / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                os.kill(int(process_folder.name), signal.SIGKILL)
