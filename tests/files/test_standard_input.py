"""Rank 0 reads standard input, and every rank finds there what the script alone finds."""

import os
import subprocess

import pytest

import launch
from matex_tf.files import standard_input

SCRIPT = """
import sys
import matex_tf
from matex_tf.runtime import objects

seen = [sys.stdin.buffer.read(3), input("how many? "), sys.stdin.readline()]
if sys.argv[1] == "file":
    seen.append([line.strip() for line in sys.stdin])
    try:
        seen.append(input())
    except EOFError:
        seen.append("end")
assert all(each == seen for each in objects.allgather(seen, "what each rank has read"))
print(seen)
if matex_tf.rank() == 0 and sys.argv[1] == "file":  # a script that asks for its rank decides which rank reads
    assert sys.stdin.read() == ""
"""
LINES = "abc17\nrest\n"
LONG = "x" * 100_000  # Open MPI's mpirun repeats parts of an input of more than 64 KB


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_rank_reads_what_the_script_alone_reads(tmp_path, ranks):
    path, full = tmp_path / "input.txt", launch.environment()
    path.write_text(f"{LINES}ümlaut\n{LONG}\n\nlast")
    for kind in ("file", "pipe"):  # of a pipe, mpirun does not pass on the end
        command = launch.command(ranks, SCRIPT, kind, env=full, module=False)
        with path.open() as file:
            given = {"stdin": file} if kind == "file" else {"input": LINES.encode()}
            read = subprocess.run(command, env=full, capture_output=True, timeout=60, **given)
        expected = [b"abc", "17", "rest\n", *([["ümlaut", LONG, "", "last"], "end"] if kind == "file" else [])]
        assert read.stdout.decode().strip() == f"how many? {expected}", read.stderr.decode()[-4000:]
        assert read.returncode == 0


def test_the_end_of_the_input_is_one_error():
    ended = launch.run(2, "import matex_tf\n\ninput()\n", module=False, cold=True)
    assert ended.returncode == 1 and ended.stderr.count("EOFError") == 1, ended.stderr


@pytest.mark.parametrize("size", [None, (40, 100)])
def test_a_script_finds_out_whether_it_was_started_at_a_terminal(size):
    """Also if only one rank asks: `sys.stdout` is a terminal on rank 0 only."""
    script = "import sys, matex_tf\nif sys.stdout.isatty(): sys.stdin.isatty()\nmatex_tf.barrier()\n"
    script += "print('at a terminal', sys.stdin.isatty(), sys.stdin.isatty())"
    full = launch.environment()
    command = launch.command(2, script, env=full, module=False)
    ended = launch.execute(command, full, 60) if size is None else launch.in_terminal(command, full, size)
    expected = f"at a terminal {size is not None} {size is not None}"
    assert ended.returncode == 0 and expected in ended.stdout, ended.output


SAVING = """
import sys
import keras
import matex_tf

model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.save("model.keras")
model.save("model.keras", overwrite=False)
print("saved", sys.stdin.name, sys.stdin.fileno() >= 0)
"""


def test_rank_0_alone_is_asked_whether_a_file_is_overwritten(tmp_path):
    (tmp_path / "answer").write_text("y\n")
    full = launch.environment()
    command = launch.command(2, SAVING, env=full, module=False)
    with (tmp_path / "answer").open() as answer:
        ended = subprocess.run(
            command, env=full, cwd=tmp_path, capture_output=True, text=True, timeout=100, stdin=answer
        )
    assert ended.returncode == 0 and "saved <stdin> True" in ended.stdout, ended.stderr[-4000:]


@pytest.mark.parametrize("closed_by", ["a child", "the rank itself"])
def test_closing_it_frees_no_descriptor(closed_by):
    """A file that is opened next would become standard input. A child's commands find the end of the input at once."""
    shared = standard_input._SharedInput(is_terminal=False)
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.pipe()[0], 0)  # as the one of mpirun, which never ends
            if closed_by == "the rank itself":
                shared._process = os.getpid()
            before = os.readlink("/proc/self/fd/0")
            shared.close()
            expected = os.devnull if closed_by == "a child" else before
            os._exit(os.readlink("/proc/self/fd/0") != expected)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
