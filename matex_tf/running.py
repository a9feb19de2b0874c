"""Runs mpirun for `matex run` as a shell would: output and terminal are mpirun's own, each signal reaches it once."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence

from . import leftovers, proof

EXIT_UNPROVED = 71
_PASSED_ON = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1
_PREFIX = "matex_tf-run-"


@contextlib.contextmanager
def proof_folder(shared: str | os.PathLike | None) -> Iterator[str]:
    """A new private folder for the proof, of which MATEX_PROOF tells the ranks; in `shared` if some are elsewhere."""
    leftovers.sweep(_PREFIX)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=shared) as folder:
        leftovers.hold(folder)
        os.environ["MATEX_PROOF"] = folder
        try:
            yield folder
        finally:
            del os.environ["MATEX_PROOF"]


def run(command: Sequence[str], folder: str) -> int:
    """mpirun's exit code; `EXIT_UNPROVED` in place of a 0 for which there is no proof in `folder`."""
    code = wait_for(command)
    if code != 0 or proof.is_given(folder):
        return code
    print(
        "matex: mpirun ended with exit code 0, but the ranks never agreed that all of them had come to the end of the "
        f"script: a rank or a host was lost on the way, or the script was never started (exit code {EXIT_UNPROVED})",
        file=sys.stderr,
    )
    return EXIT_UNPROVED


def wait_for(command: Sequence[str]) -> int:
    """Run `command` in a process group of its own, in the foreground of the terminal if this process is there."""
    at_terminal = _is_in_foreground()
    child: subprocess.Popen | None = None
    early: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        if child is None:
            early.append(number)
        elif child.poll() is None:
            child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    try:
        child = subprocess.Popen(command, preexec_fn=_start(at_terminal, os.getpid()))
        for number in early:
            child.send_signal(number)
        code = child.wait()
    finally:
        if at_terminal:
            _take_terminal(os.getpgrp())
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _is_in_foreground() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False  # standard input is not this process's terminal


def _start(at_terminal: bool, parent: int) -> Callable[[], None]:
    library = ctypes.CDLL(None)

    def prepare() -> None:
        os.setpgid(0, 0)
        if at_terminal:
            _take_terminal(os.getpid())
        # Who kills `matex run` means the ranks, too.
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def _take_terminal(group: int) -> None:
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # it would stop one who is in the background
    try:
        os.tcsetpgrp(0, group)
    finally:
        signal.signal(signal.SIGTTOU, before)
