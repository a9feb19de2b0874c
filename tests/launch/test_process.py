"""The signals of `matex run`: which reach mpirun, and how often."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from matex_tf.launch import process

pytestmark = pytest.mark.waits


def waiting_for(tmp_path, script, **options):
    """A process that waits for `script`, a stand-in for mpirun which says that it is ready."""
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f"#!/bin/sh\n{script}")
    mpirun.chmod(0o755)
    program = "import sys; from matex_tf.launch import process; sys.exit(process.wait_for_command([sys.argv[1]]))"
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(mpirun)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )
    assert child.stdout.readline().startswith("ready")
    return child


def test_a_folder_into_which_a_rank_still_writes_stays(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    with process.make_proof_folder(tmp_path) as folder:
        monkeypatch.setattr(os, "rmdir", refuse)
    assert os.path.isdir(folder)


def test_a_signal_reaches_mpirun_and_its_death_is_an_exit_code(tmp_path):
    child = waiting_for(
        tmp_path, "trap 'echo asked' USR1\necho ready\nfor i in 1 2 3; do sleep 0.5; done\nkill -9 $$\n"
    )
    child.send_signal(signal.SIGUSR1)
    assert child.communicate(timeout=30)[0] == "asked\n"
    assert child.returncode == 128 + signal.SIGKILL


def test_what_the_whole_group_gets_reaches_mpirun_once(tmp_path):
    """Also where PATH has no program at all."""
    sleep = shutil.which("sleep")
    script = f"trap 'echo asked' USR1\necho ready\nfor i in 1 2 3 4 5 6; do {sleep} 0.5; done\n"
    child = waiting_for(tmp_path, script, env={**os.environ, "PATH": str(tmp_path)})
    os.killpg(child.pid, signal.SIGUSR1)
    time.sleep(1.5)
    child.send_signal(signal.SIGUSR1)
    assert child.communicate(timeout=60)[0] == "asked\nasked\n"


STOPPED = """
import signal
watched = {signal.SIGTSTP, signal.SIGCONT}
signal.pthread_sigmask(signal.SIG_BLOCK, watched)
print("ready", flush=True)
print(signal.sigwait(watched).name, flush=True)
print(signal.sigwait(watched).name, signal.sigtimedwait(watched, 1))
"""


@pytest.mark.parametrize("of_group", [True, False])
def test_stopped_and_continued_with_mpirun(tmp_path, of_group):
    child = waiting_for(tmp_path, f"exec {sys.executable} -c '{STOPPED}'")
    send = os.killpg if of_group else os.kill
    send(child.pid, signal.SIGTSTP)
    assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
    assert child.stdout.readline() == "SIGTSTP\n"  # SIGCONT would take it away from who has not looked yet
    send(child.pid, signal.SIGCONT)
    assert child.communicate(timeout=30)[0] == "SIGCONT None\n"
    assert child.returncode == 0


def test_what_nohup_ignores_stays_ignored(tmp_path):
    ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    child = waiting_for(tmp_path, "echo ready\nsleep 1\necho done\n", preexec_fn=ignore)
    os.killpg(child.pid, signal.SIGHUP)
    assert child.communicate(timeout=30)[0] == "done\n"
    assert child.returncode == 0
