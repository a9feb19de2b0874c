"""Of ranks that are lost the one that ended first is named, however late one looks."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

import launch
from matex_tf.launch import rank_ends, restarts, run_end
from matex_tf.runtime import rank_records
from matex_tf.runtime.rank_records import Record

pytestmark = pytest.mark.waits


def note(folder, rank, process, **other):
    said = {
        "rank": rank,
        "size": 3,
        "local_size": 3,
        "process": process,
        "namespace": rank_records.read_namespace(),
        **other,
    }
    (folder / f"rank-{rank}").write_text(json.dumps(said))


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0)])
def test_the_order_of_ends_is_kept_until_it_is_asked_for(tmp_path, order, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open", raising=False)  # as in conda's Python
    ranks = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
    with rank_ends.RankEnds(tmp_path) as ends:
        assert ends.look_for_ranks() and ends.find_first() is None
        for rank, process in enumerate(ranks):
            note(tmp_path, rank, process.pid)
        assert not ends.look_for_ranks() and ends.find_first() is None
        for rank in order:
            ranks[rank].kill()
            ranks[rank].wait()
        assert ends.find_first().rank == order[0]


def test_a_process_of_another_host_is_none_of_ours(tmp_path):
    with rank_ends.RankEnds(tmp_path) as ends:
        for rank in range(2):
            assert ends.look_for_ranks()
            note(tmp_path, rank, os.getpid(), namespace="another", size=2)
        assert not ends.look_for_ranks(), "the records of all ranks were read"
        assert ends.find_first() is None


@pytest.mark.parametrize("code, how", [(137, "137: SIGKILL"), (9, "9: SIGKILL"), (11, "11: SIGSEGV"), (3, "3")])
def test_what_is_said(code, how):
    first = Record(1, 3, host="here")
    assert (
        rank_ends.describe_end(first, code)
        == f"rank 1 of 3 on here ended first, without an error message (exit code {how})"
    )


KILLED = """
import os, signal, time
import matex_tf
if matex_tf.rank() == 1:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""
FAILS = """
import matex_tf, time
if matex_tf.rank() == 2:
    raise ValueError("a reason of my own")
time.sleep(60)
"""


def test_matex_run_ends_with_what_was_the_cause():
    """The last line is ours, whatever this MPI has to say, and says it once."""
    killed = launch.matex_run(3, launch.script_file(KILLED), cold=True)
    assert killed.returncode == 128 + signal.SIGKILL, killed.output
    assert "rank 1 of 3 on " in killed.stderr.splitlines()[-1], killed.stderr
    assert "ended first, without an error message (exit code 137: SIGKILL)" in killed.stderr.splitlines()[-1]
    failed = launch.matex_run(3, launch.script_file(FAILS), cold=True)
    assert failed.returncode == 1 and failed.stderr.count("ValueError: a reason of my own") == 1, failed.output
    assert failed.stderr.splitlines()[-1] == "ValueError: a reason of my own"
    assert failed.stderr.count("Traceback") == 1 and "rank 2 of 3 on " in failed.stderr
    assert "failed at script.py, line 4" in failed.stderr


def write_often(begins):
    begins.wait()
    for _ in range(200):
        rank_records.note_separate()


def test_processes_that_leave_the_same_word_at_once_do_not_disturb_one_another(tmp_path, monkeypatch):
    """Those that mpirun started to be each for itself are all rank 0."""
    monkeypatch.setattr(rank_records, "_folder", str(tmp_path))
    context = multiprocessing.get_context("fork")
    begins = context.Event()
    several = [context.Process(target=write_often, args=(begins,)) for _ in range(4)]
    for one in several:
        one.start()
    begins.set()
    for one in several:
        one.join()
    assert [one.exitcode for one in several] == [0] * 4
    end = run_end.read_end(tmp_path)
    assert end.proves_success and [one.state for one in end.records] == [rank_records.SEPARATE] * 4


def test_each_exit_code_is_told_and_those_of_signals_by_name():
    first = Record(1, 2, host="node7")
    for code in range(256):
        name, number = rank_ends.find_signal(code), code - 128
        assert bool(name) == (number in signal.valid_signals()), code
        said, why = rank_ends.describe_end(first, code), restarts.explain_end(code)
        assert said.startswith("rank 1 of 2 on node7 ended first") and f"(exit code {code}" in said
        assert name in said and name in why and f"exit code {code}" in why
        assert ("was killed" in why) == bool(name)
    for mpi in ("Open MPI", "MPICH"):  # of which one gives a signal's number itself, the other a shell's code for it
        said = rank_ends.describe_end(replace(first, mpi=mpi), int(signal.SIGBUS))
        assert ("SIGBUS" in said) == (mpi == "MPICH")
    told = {137: "SIGKILL", 143: "SIGTERM", 160: "", 162: "SIGRTMIN", 165: "SIGRTMIN+3", 192: "SIGRTMAX", 255: ""}
    assert {code: rank_ends.find_signal(code) for code in told} == told


FORKS = """
import os, sys
from matex_tf.runtime import rank_records
rank_records.note_writing()
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
print(os.listdir(os.environ["MATEX_PROOF"]))
"""


def test_the_mark_of_a_process_that_still_ends_goes_with_that_process_and_not_with_its_child(tmp_path):
    env = {**launch.environment(), "MATEX_PROOF": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", FORKS], env=env, capture_output=True, text=True, check=True)
    assert ".writing" in ended.stdout and rank_records.are_files_written(tmp_path)
