"""Ranks that wait for one that does not come say for whom, and where that is; in the end the job ends."""

import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

import launch
from matex_tf.world.exit_codes import EXIT_STALLED

pytestmark = pytest.mark.waits

LATE = """
import os, signal, sys, time
import tensorflow as tf
import matex_tf

def dawdle():
    time.sleep(float(sys.argv[1]))

matex_tf.ops.reduce_gradients([tf.ones([2])], ["kernel"], 1.0, "the first update")
if matex_tf.rank() == int(sys.argv[2]):
    if "stopped" in sys.argv:
        os.kill(os.getpid(), signal.SIGSTOP)
    dawdle()
if "training" in sys.argv:
    matex_tf.ops.reduce_gradients([tf.ones([2])] * 2, ["kernel", "bias"], 1.0, "the second update")
print(matex_tf.allreduce(tf.ones([3]), "sum").numpy())
"""
SETTINGS = {"MATEX_STALL_SECONDS": "2"}


@pytest.mark.parametrize("late", [0, pytest.param(2, marks=pytest.mark.more)])
def test_a_late_rank_is_named_with_its_line_and_nothing_is_lost(late):
    result = launch.run(3, LATE, 9, late, env=SETTINGS).check()
    assert "[3. 3. 3.]" in result.stdout
    waiting = " ".join(rf"rank {rank} \(\S+\)," for rank in range(3) if rank != late)[:-1]
    first = re.search(rf"for \d s {waiting} have waited at allreduce \(sum\) of float32 \[3\]", result.stderr)
    assert first, result.stderr
    there = re.search(rf"rank {late} \(\S+\) comes to number \d+ next; it is at (.*)", result.stderr)
    assert there and "line 7, in dawdle" in there.group(1) and "it has made 1 updates" in there.group(1), result.stderr
    stack = result.stderr.partition(f"the Python stack of rank {late} (")[2]
    assert re.search(r"line 13, in <module>: dawdle\(\)\n.*line 7, in dawdle", stack), result.stderr


@pytest.mark.parametrize("late, stopped", [pytest.param(1, False, marks=pytest.mark.more), (0, True), (1, True)])
def test_the_job_ends(late, stopped):
    words = ["training", *(["stopped"] if stopped else [])]
    result = launch.run(3, LATE, 300, late, *words, env={**SETTINGS, "MATEX_ABORT_SECONDS": "9"}, timeout=280)
    assert result.returncode == 70, result.output
    assert "ending the job (exit code 70) after MATEX_ABORT_SECONDS=9" in result.stderr
    told = [int(seconds) for seconds in re.findall(r"for (\d+) s rank", result.stderr)]
    assert 9 <= told[-1] < 16, told  # not at twice, and twice again, what was told last
    assert ("does not answer" if stopped else "in dawdle") in result.stderr, result.stderr
    assert "waited at the second update, with the gradients of kernel and 1 more" in result.stderr, result.stderr


STOPPED_IN_A_SUM = """
import os, signal, threading
import tensorflow as tf
import matex_tf

@tf.function
def sum_for_ever(x):
    while tf.constant(True):
        x = matex_tf.ops.reduce_gradients([x], ["kernel"], 1.0, "an overlapped update")[0]
    return x

if matex_tf.rank() == 1:
    threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGSTOP)).start()
sum_for_ever(tf.ones([4_000_000]))
"""


def test_a_rank_that_stops_while_gradients_travel_is_named():
    settings = {**SETTINGS, "MATEX_ABORT_SECONDS": "5", "MATEX_OVERLAP": "on", "MATEX_ALGORITHM": "mpi"}
    result = launch.run(2, STOPPED_IN_A_SUM, env=settings, timeout=100)
    assert result.returncode == 70, result.output
    assert re.search(r"rank 1 \(\S+\) does not answer", result.stderr), result.stderr
    assert "has waited at an overlapped update, with the gradients of kernel" in result.stderr, result.stderr


def test_a_prompt_is_waited_for_however_long_nobody_types():
    """mpirun gives standard input to rank 0 alone; the others are at its end at once."""
    limits = {**SETTINGS, "MATEX_ABORT_SECONDS": "4"}
    full = launch.environment(limits)
    command = launch.command(2, "x.py", env=full, module=False)[:-1]
    typed = f"(sleep 9; printf 'print(6 * 7)\\nexit()\\n') | {shlex.join(command)} -i -c 'import matex_tf'"
    result = launch.execute(["bash", "-c", typed], full, 60).check()
    assert "42" in result.stdout
    assert re.search(r"rank 0 \(\S+\) comes to .*; it is at the prompt of an interactive session", result.stderr)
    assert "ending the job" not in result.stderr


SAVES = """
import sys, time
import matex_tf
from matex_tf.runtime import objects, watchdog

objects.barrier("the beginning")
if matex_tf.rank() == 1:
    with watchdog.excuse_wait("saving to a slow disk", float(sys.argv[2])):
        time.sleep(float(sys.argv[1]))
objects.barrier("the end")
print("saved")
"""


@pytest.mark.parametrize("seconds, times, code", [(9, 100, 0), (100, 2, 70)])
def test_a_rank_that_saves_is_waited_for_longer_but_not_for_ever(seconds, times, code):
    limits = {"MATEX_STALL_SECONDS": "1", "MATEX_ABORT_SECONDS": "5"}
    result = launch.run(2, SAVES, seconds, times, env=limits, timeout=60)
    assert result.returncode == code and ("saved" in result.stdout) == (code == 0), result.output
    assert "it is saving to a slow disk" in result.stderr, result.stderr


EACH_FOR_THE_OTHER = """
import matex_tf
from matex_tf import ops; from matex_tf.world import world

with ops.announce_exchange("what the other has to say"):
    world.get_communicator("control").recv(source=1 - matex_tf.rank())
"""


def test_ranks_that_wait_for_each_other_are_told_so_and_ended():
    result = launch.run(2, EACH_FOR_THE_OTHER, env={**SETTINGS, "MATEX_ABORT_SECONDS": "5"}, timeout=100)
    assert result.returncode == 70, result.output
    assert "all ranks have waited" in result.stderr, result.stderr
    for rank in range(2):
        there = re.search(rf"rank {rank} \(\S+\) waits at (.*); it is at (.*)", result.stderr)
        assert there and "what the other has to say" in there.group(1), result.stderr
        assert "line 6, in <module>" in there.group(2), result.stderr


BEFORE_MPI = """
import os, sys, time
if os.environ["OMPI_COMM_WORLD_RANK"] == sys.argv[2]:
    time.sleep(float(sys.argv[1]))
import matex_tf
print(matex_tf.allreduce(1.0, "sum").numpy())
"""


def test_the_start_of_mpi_is_watched():
    result = launch.run(2, BEFORE_MPI, 6, 1, env=SETTINGS, module=False, cold=True).check()
    assert "2.0" in result.stdout
    told = re.findall(r"matex_tf: for (\d+) s rank 0 \(\S+\) has waited for MPI to start.* One may not", result.stderr)
    assert told == ["2"], result.stderr


def test_mpi_that_does_not_start_is_ended():
    limits = {**SETTINGS, "MATEX_ABORT_SECONDS": "4"}
    result = launch.run(2, BEFORE_MPI, 300, 0, env=limits, module=False, timeout=100, cold=True)
    assert result.returncode == EXIT_STALLED, result.output
    assert re.search(r"rank 1 \(\S+\) has waited for MPI to start and the others to come: ending it", result.stderr)


LATE_END = """
import sys, time
import matex_tf
from matex_tf.world import mpi_calls

if matex_tf.rank() == int(sys.argv[1]):
    plain = mpi_calls.end_mpi
    mpi_calls.end_mpi = lambda: (time.sleep(5), plain())
"""


@pytest.mark.parametrize("late", [0, 1])
def test_the_end_of_mpi_is_watched(late):
    result = launch.run(2, LATE_END, late, env=SETTINGS, cold=True).check()
    for rank in range(2):
        assert f"matex_tf: for 2 s rank {rank} (" in result.stderr and "waited for MPI to end" in result.stderr, result


WATCHED = """
import sys, time
from matex_tf.world import time_limit

with time_limit.limit_wait(int(sys.argv[1]), 6, "has waited for nothing"):
    time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize("rank", [0, 2])
def test_every_rank_ends_itself_and_four_say_so(rank):
    limits = {"MATEX_STALL_SECONDS": "1", "MATEX_ABORT_SECONDS": "2"}
    result = launch.run_alone(WATCHED, rank, 60, env=limits, cold=True)
    assert result.returncode == EXIT_STALLED, result.output
    lines = re.findall(r"matex_tf: (?:for 1 s )?rank 0 \(\S+\) has waited for nothing(.)", result.stderr)
    assert lines == ([] if rank else [".", ":"]), result.stderr
    assert launch.run_alone(WATCHED, 0, 0.1, env={**limits, "MATEX_STALL_SECONDS": "0"}, cold=True).check().stderr == ""


def test_a_process_that_is_stopped_is_not_ended():
    full = launch.environment({"MATEX_STALL_SECONDS": "0", "MATEX_ABORT_SECONDS": "2"})
    command = [sys.executable, "-c", f"print('ready', flush=True)\n{WATCHED}", "0", "60"]
    with subprocess.Popen(command, env=full, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as rank:
        assert rank.stdout.readline()
        time.sleep(1)
        rank.send_signal(signal.SIGSTOP)
        time.sleep(4)
        rank.send_signal(signal.SIGCONT)
        assert rank.poll() is None
        assert rank.wait(30) == EXIT_STALLED
