"""A rank is lost in any phase of a script: the run ends as docs/reliability.md says, and nothing of it is lost.

One run for each phase, rank and mode. What is printed and written is compared with what the script gives alone.
"""

import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest

import launch

CASE = Path(__file__).with_name("lost_case.py")
MODES = {"plain": [], "restarts": ["--restarts", 1], "elastic": ["--elastic"]}
PHASES = ("imports", "data", "between", "after", "writing")
USUAL = {
    ("between", 1, "restarts"),
    ("imports", 0, "elastic"),
    ("between", 0, "elastic"),
    ("writing", 0, "elastic"),
    ("after", 1, "elastic"),
}
"""What the usual run takes; in it every mode and phase of which the product has lines of its own."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What the script prints alone, and the files that it leaves."""
    folder = tmp_path_factory.mktemp("alone")
    return launch.run_alone(CASE, cwd=folder).check().stdout.splitlines(), read_files(folder)


@pytest.fixture
def temporary():
    """A folder for all that a run keeps for a while; a short path, as MPI's sockets lie beneath it."""
    folder = tempfile.mkdtemp(prefix="lost-", dir="/tmp")
    yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


def read_files(folder):
    """The files in `folder` and below it, and the folders."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def run_losing(folder, temporary, options, lose, **env):
    """The run of two ranks in `folder` that loses what `lose` says."""
    env = {"LOSE": lose, "LOST": str(temporary / "lost"), "TMPDIR": str(temporary / "t"), **env}
    env |= {"MATEX_FILES_DIR": str(temporary / "t"), "OMPI_MCA_btl_sm_backing_directory": str(temporary / "t")}
    for one in (folder, temporary / "t"):
        one.mkdir()
    found = launch.matex("run", "-n", 2, *options, CASE, env=env, cwd=folder)
    assert (temporary / "lost").exists(), found.output
    return found


def list_left(folder, temporary):
    """What is left of a run beside its files: processes that work in its folder, and what it kept for a while."""
    until = time.monotonic() + 20
    while (left := [f"process {name}" for name in os.listdir("/proc") if is_in(name, folder)]) and (
        time.monotonic() < until
    ):
        time.sleep(0.1)  # the last may be about to end
    return left + sorted(str(path) for path in (temporary / "t").rglob("*"))


def is_in(process, folder):
    try:
        return os.readlink(f"/proc/{process}/cwd") == str(folder) and process != "self"
    except OSError:
        return False


def are_within(lines, found):
    """Whether `lines` are among those `found`, in this order."""
    rest = iter(found)
    return all(line in rest for line in lines)


def check_nothing_is_lost(found, folder, temporary, undisturbed):
    """What the script prints and writes is there. It may be there twice, where parts of the script ran again."""
    lines, files = undisturbed
    shown = found.stdout.splitlines()
    assert are_within(lines, shown), found.output
    assert not set(shown) - set(lines), found.output
    assert read_files(folder) == files, found.output
    assert not list_left(folder, temporary), found.output


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "phase, rank, mode",
    [
        pytest.param(phase, rank, mode, marks=[] if (phase, rank, mode) in USUAL else pytest.mark.more)
        for phase in PHASES
        for rank in (0, 1)
        for mode in MODES
    ],
)
def test_a_rank_is_killed(phase, rank, mode, tmp_path, temporary, undisturbed):
    folder = tmp_path / "lost"
    found = run_losing(folder, temporary, MODES[mode], f"{phase}:{rank}:SIGKILL")
    restarts = "restart 1 of" in found.stderr
    if mode == "plain":
        assert found.returncode == 137, found.output
        assert f"rank {rank}" in found.stderr and not restarts, found.output
        assert not list_left(folder, temporary), found.output
        return
    assert found.returncode == 0, found.output
    assert restarts or mode == "elastic", found.output
    check_nothing_is_lost(found, folder, temporary, undisturbed)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "lose, asks, restarts",
    [
        ("between:0:SIGKILL", "mpi", True),  # what the script does on rank 0 only was lost with it
        pytest.param("between:0:SIGKILL", "1", True, marks=pytest.mark.more),
        pytest.param("between:1:SIGKILL", "1", False, marks=pytest.mark.more),
        ("caught:1:SIGKILL", None, True),
        pytest.param("caught:0:SIGKILL", None, True, marks=pytest.mark.more),
        ("late:0:SIGKILL", None, True),
        ("teardown:0:SIGKILL", None, True),
        pytest.param("pool:0:SIGKILL", None, True, marks=pytest.mark.more),
        pytest.param("late:1:SIGKILL", None, False, marks=pytest.mark.more),
        pytest.param("between:0:SIGSEGV", None, False, marks=pytest.mark.more),
        pytest.param("between:1:SIGSEGV", None, False, marks=pytest.mark.more),
        pytest.param("between:0:exit", None, True, marks=pytest.mark.more),
        pytest.param("between:1:exit", None, True, marks=pytest.mark.more),
    ],
)
def test_ranks_that_cannot_go_on_for_another_are_started_again(
    lose, asks, restarts, tmp_path, temporary, tmp_path_factory, undisturbed
):
    phase = lose.partition(":")[0]
    if phase in ("caught", "pool"):
        alone = tmp_path_factory.mktemp("alone")
        shown = launch.run_alone(CASE, cwd=alone, env={"LOSE": f"{phase}:-1:"}).check().stdout.splitlines()
        undisturbed = shown, read_files(alone)
    folder = tmp_path / "lost"
    end = {"TAKEN_APART": "1"} if phase == "teardown" else {}
    found = run_losing(folder, temporary, ["--elastic"], lose, ASKS=asks, **end).check()
    assert ("restart 1 of 3" in found.stderr) == restarts, found.output
    check_nothing_is_lost(found, folder, temporary, undisturbed)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.more)])
@pytest.mark.parametrize("how, code, says", [("raise", 1, "the script's own"), ("SIGTERM", 75, "SIGTERM")])
def test_a_rank_that_fails_or_is_asked_to_end_ends_all(rank, how, code, says, tmp_path, temporary):
    folder = tmp_path / "lost"
    found = run_losing(folder, temporary, ["--elastic"], f"between:{rank}:{how}")
    assert found.returncode == code, found.output
    assert says in found.stderr and "restart 1 of" not in found.stderr.replace("before the restart", ""), found.output
    assert not list_left(folder, temporary), found.output


AHEAD = """
import os, posix, signal, sys, threading, time
import matex_tf
from matex_tf.runtime import objects
from matex_tf.world import world
is_first = world.get_world().rank == 0
def say():
    time.sleep(30 * is_first)
    print("of a thread")
thread = threading.Thread(target=say, daemon=True)
thread.start()
if not is_first:
    thread.join()
objects.barrier("the thread of the first rank has to print yet")
if is_first:
    os.kill(os.getpid(), signal.SIGKILL)
objects.barrier("once more")
print("end")
"""


def test_what_a_thread_has_printed_sooner_than_that_of_the_first_rank_is_not_lost():
    found = launch.matex_run(2, "--elastic", launch.script_file(AHEAD)).check()
    assert found.stdout.splitlines() == ["of a thread", "end"], found.output
