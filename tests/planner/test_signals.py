"""A plan that a signal ends leaves no process and no file behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from planner_plans import a_plan

import launch
from matex_tf.planner import plan_file
from matex_tf.planner.measurement import started

PLAN = "import sys; from matex_tf.launch.cli import main; sys.exit(main())"
SLEEPER = """
import pathlib, subprocess, tempfile, time
subprocess.Popen(["sleep", "500"])
pathlib.Path("made.txt").write_text("made")
tempfile.mkdtemp()
time.sleep(500)
"""


def list_processes(mark):
    """The processes, by number, in whose environment `mark` is; but for those that are over and not waited for."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:  # it has ended, or is another user's
            continue
    return found


def wait_until(is_so, seconds=60):
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.05)


@pytest.fixture
def places(tmp_path):
    project, temporary = tmp_path / "project", tmp_path / "temporary"
    for folder in (project, temporary):
        folder.mkdir()
    (project / "train.py").write_text(SLEEPER)
    plan_file.save_plan(a_plan(script=("train.py",)), project / "plan.json")
    return project, temporary


def start(places, words):
    """`matex plan`, and a function that lists what runs for it."""
    project, temporary = places
    env = {**launch.environment({"TMPDIR": str(temporary), "MARK_OF_THIS_TEST": str(temporary)})}
    process = subprocess.Popen(
        [sys.executable, "-c", PLAN, "plan", *words], env=env, cwd=project,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    return process, lambda: [one for one in list_processes(f"MARK_OF_THIS_TEST={temporary}") if one != process.pid]


def has_scripts(running, count):
    """Whether so many scripts have started what they start."""
    return (
        sum(b"sleep\x00500" in Path(f"/proc/{one}/cmdline").read_bytes() for one in running() if is_there(one)) >= count
    )


def is_there(process):
    return Path(f"/proc/{process}").exists()


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "words, number, scripts",
    [
        ("--ranks 2 --ranks-per-host 1 train.py", signal.SIGTERM, 1),
        ("--ranks 2 --ranks-per-host 1 train.py", signal.SIGINT, 1),
        pytest.param("--ranks 2 --ranks-per-host 1 train.py", signal.SIGHUP, 1, marks=pytest.mark.more),
        ("--check -n 2 plan.json", signal.SIGTERM, 2),
    ],
)
def test_a_signal_leaves_nothing(words, number, scripts, places):
    project, temporary = places
    before = sorted(project.rglob("*"))
    process, running = start(places, words.split())
    try:
        wait_until(lambda: has_scripts(running, scripts) or process.poll() is not None)
        process.send_signal(number)
        process.send_signal(signal.SIGTERM)  # what it does for the first it does to its end
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + number and f"ended by {number.name}" in said, said
    wait_until(lambda: not running(), 20)
    assert list(temporary.iterdir()) == [] and sorted(project.rglob("*")) == before


@pytest.mark.timeout(100)
def test_what_a_killed_plan_has_started_ends_and_the_next_plan_removes_its_folder(places, monkeypatch):
    _, temporary = places
    process, running = start(places, "--ranks 2 --ranks-per-host 1 train.py".split())
    wait_until(lambda: has_scripts(running, 1))
    phantom = [one for one in running() if b"matex_tf" in Path(f"/proc/{one}/cmdline").read_bytes()]
    process.kill()
    process.wait()
    process.stderr.close()
    wait_until(lambda: not any(map(is_there, phantom)), 20)
    for one in running():  # what the script itself had started, and nobody has ended
        os.kill(one, signal.SIGKILL)
    (left,) = temporary.glob(f"{started.PREFIX}*")
    os.utime(left, (0, 0))
    monkeypatch.setattr(started.tempfile, "tempdir", str(temporary))
    with started.make_place() as place:
        assert place.is_dir() and not left.exists()
    assert not place.exists()


STUBBORN = """
import os, pathlib, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "500"])
subprocess.Popen(["sleep", "500"], preexec_fn=os.setpgrp)
pathlib.Path("there").touch()
time.sleep(500)
"""


def test_a_process_that_does_not_end_when_asked_is_ended_with_all_of_its_session(tmp_path):
    with started.start_process([sys.executable, "-c", STUBBORN], 0.2, cwd=tmp_path) as process:
        wait_until((tmp_path / "there").exists)
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: process.pid not in map(read_session, Path("/proc").glob("[0-9]*")), 10)


def test_a_signal_while_a_process_has_time_to_end_ends_it(tmp_path):
    with (
        pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)),
        started.catch_signals(),
        started.start_process([sys.executable, "-c", STUBBORN], 20.0, cwd=tmp_path) as process,
    ):
        wait_until((tmp_path / "there").exists)
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    assert process.returncode == -signal.SIGKILL


def test_a_signal_ends_a_plan_whose_terminal_is_gone(monkeypatch):
    class Gone:
        def write(self, text):
            raise OSError("no terminal")

    monkeypatch.setattr(sys, "stderr", Gone())
    with pytest.raises(SystemExit, match=str(128 + signal.SIGHUP)), started.catch_signals():
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(10)


def test_a_folder_that_cannot_be_removed_ends_no_plan(monkeypatch, capsys):
    def refuse(path):
        raise PermissionError("read-only")

    with monkeypatch.context() as patched:
        patched.setattr(started.shutil, "rmtree", refuse)
        patched.setattr(started.time, "sleep", lambda _: None)
        with started.make_place() as place:
            pass
    assert f"{place} could not be removed: read-only" in capsys.readouterr().err
    place.rmdir()


def read_session(path):
    """The session of a process that is not over; 0 if it is."""
    try:
        state, _, _, session = (path / "stat").read_text().rpartition(")")[2].split()[:4]
    except OSError:
        return 0
    return 0 if state == "Z" else int(session)
