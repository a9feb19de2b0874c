"""Ranks that are left go on without those that are lost, in their processes, and give what the script gives alone."""

import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from resilience.test_run_state import CASE, differences, shown

import launch
from matex_tf.resilience import elastic
from matex_tf.runtime.hooks import find_version

KINDS = Path(__file__).with_name("elastic_case.py")
PIECES = Path(__file__).with_name("pieces_case.py")


def run(ranks, script, arguments, state, **env):
    """A script of which ranks are lost; nothing is saved within a call of fit that could be gone on from."""
    env = {"MATEX_SAVE_SECONDS": "0", "MATEX_STATE": str(state), **env}
    return launch.matex_run(ranks, "--elastic", script, *arguments, env=env)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "keras, lose, strategy",
    [
        # Within an epoch and a generator's; the last of three is left, which was not the first.
        ("0", "1:2:3:1:SIGKILL 2:1:2:0:SIGKILL", "sharded"),
        pytest.param("0", "1:2:3:1:SIGKILL 2:1:2:0:SIGKILL", "allreduce", marks=pytest.mark.more),
        # The first of all, in its first step, and then the one after it.
        pytest.param("1", "0:0:0:0:SIGKILL 1:3:1:0:SIGSEGV", "allreduce", marks=pytest.mark.more),
        # The one that has all of the optimizer's variables, and then the one that had a copy.
        pytest.param("1", "0:1:3:0:SIGKILL 1:3:1:0:SIGSEGV", "servers:1", marks=pytest.mark.more),
    ],
)
def test_those_that_are_left_go_on(tmp_path, keras, lose, strategy):
    (tmp_path / "alone").mkdir()
    calls = [("first", "second", "third", "fourth")[int(one[0])] for one in lose.split()]
    want = shown(launch.run_alone(CASE, tmp_path / "alone", *calls, env={"TF_USE_LEGACY_KERAS": keras}).check())
    folder = tmp_path / "lost"
    folder.mkdir()
    env = {"TF_USE_LEGACY_KERAS": keras, "LOSE": lose, "MATEX_STRATEGY": strategy}
    found = run(3, CASE, [folder, *calls], folder / "state", **env).check()
    assert "is lost; 2 go on without it, at: " in found.stderr, found.output
    assert "is lost; 1 rank goes on without it, at: " in found.stderr, found.output
    assert "restart 1 of" not in found.stderr and "runs as allreduce" not in found.stderr, found.output
    assert not differences(want, shown(found)), found.output
    assert sorted(path.name for path in folder.iterdir()) == sorted([*lose.split(), "log.csv"])


@pytest.mark.more
@pytest.mark.timeout(600)
@pytest.mark.skipif(find_version("keras") < "3", reason="one Keras will do")
def test_ranks_may_be_lost_while_copies_of_pieces_are_exchanged(tmp_path):
    want = shown(launch.run_alone(PIECES).check())
    found = run(4, PIECES, [], tmp_path / "state", MATEX_STRATEGY="sharded").check()
    assert "restart 1 of" not in found.stderr and found.stderr.count("go on without it") == 2, found.output
    assert "at: restoring the pieces of lost ranks" in found.stderr and "1 rank goes on" in found.stderr, found.output
    assert not differences(want, shown(found)), found.output


@pytest.mark.more
@pytest.mark.timeout(900)
def test_a_piece_that_is_lost_with_its_copy_is_restored_from_the_kept_state(tmp_path):
    (tmp_path / "alone").mkdir()
    want = shown(launch.run_alone(CASE, tmp_path / "alone").check())
    folder = tmp_path / "lost"
    folder.mkdir()
    env = {"LOSE": "1:2:3:0:SIGKILL 1:2:3:1:SIGKILL", "MATEX_STRATEGY": "sharded"}
    found = run(3, CASE, [folder], folder / "state", **env).check()
    assert "restart 1 of 3" in found.stderr and "no other has a copy of it" in found.stderr, found.output
    assert not differences(want, shown(found)), found.output


@pytest.mark.timeout(900)
@pytest.mark.skipif(find_version("keras") < "3", reason="what is tried are things of Keras 3")
@pytest.mark.parametrize(
    "ranks, kills, strategy",
    [
        *(
            pytest.param(4, "accumulated:9:0 unknown:7:1 own:10:0", strategy, marks=pytest.mark.more)
            for strategy in ("allreduce", "sharded")
        ),
        # A function that the step calls keeps its trace.
        pytest.param(3, "own:10:0 accumulated:9:1", "sharded", marks=pytest.mark.more),
        pytest.param(3, "several:2:1 sparse:8:0", "allreduce", marks=pytest.mark.more),
        # As they take the second of three batches in a call.
        (3, "loop:5:1 loop:17:0", "allreduce"),
    ],
)
def test_what_a_step_has_besides_weights_is_not_lost(ranks, kills, strategy, tmp_path):
    words = [tmp_path, *dict.fromkeys(kill.partition(":")[0] for kill in kills.split())]
    alone = shown(launch.run_alone(KINDS, *words).check())
    found = run(ranks, KINDS, words, tmp_path / "state", KILL=kills, MATEX_STRATEGY=strategy).check()
    assert "restart 1 of" not in found.stderr and "1 rank goes on without it" in found.stderr, found.output
    assert not differences(alone, shown(found)), found.output


def read_weights(result):
    return [float(one) for one in result.stdout.split("W [")[-1].strip(" ]\n").split(",")]


LOOP = """
import os, signal, sys
import numpy as np, tensorflow as tf
if "matex_tf" in sys.modules and not os.path.exists(sys.argv[1]):
    import posix
    first = sys.modules["matex_tf"].rank() == 0
else:
    first = None
tf.keras.utils.set_random_seed(1)
w = tf.Variable(tf.zeros([4, 1]))
x = np.random.default_rng(0).random((64, 4)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(8)
for epoch in range(3):
    for step, (a, b) in enumerate(data):
        if first and epoch == 1 and step == 2:
            posix.close(posix.open(sys.argv[1], os.O_CREAT | os.O_WRONLY))
            os.kill(os.getpid(), signal.SIGKILL)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((a @ w - b) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
print("W", w.numpy().ravel().tolist())
"""


@pytest.mark.timeout(600)
def test_a_loop_of_its_own_is_started_again(tmp_path):
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    mark = tmp_path / "lost"
    alone = launch.run_alone(script, mark).check()
    found = run(2, script, [mark], tmp_path / "state").check()
    assert "restart 1 of 3" in found.stderr and mark.exists()
    np.testing.assert_allclose(read_weights(found), read_weights(alone), rtol=1e-5)


def test_files_of_a_rank_that_becomes_the_first(tmp_path, monkeypatch):
    from matex_tf.files import journal, journal_reader, overlay
    from matex_tf.files.view import View

    (tmp_path / "own").mkdir()
    (tmp_path / "journal").mkdir()
    journal_reader.make_file(str(tmp_path / "journal"))
    news = journal_reader.Notes(str(tmp_path / "journal"))
    view = View(str(tmp_path / "own"), news)
    monkeypatch.setattr(overlay, "_view", view)
    monkeypatch.setattr(journal, "_writer", None)
    log, made = tmp_path / "log.csv", tmp_path / "folder" / "made.txt"
    log.write_text("a\n")  # as far as the first rank has written it
    (tmp_path / "folder").mkdir()
    with open(view.prepare_write(str(log), keep=False), "w") as file:
        file.write("a\nb\n")
        file.flush()
        with open(view.prepare_write(str(made), keep=False), "w") as other:
            other.write("made")
        overlay.take_over_files(False)
        assert log.read_text() == "a\n" and not made.exists()
        overlay.take_over_files(True)
        assert log.read_text() == "a\nb\n" and made.read_text() == "made"
        file.write("c\n")
    assert log.read_text() == "a\nb\nc\n"
    assert view.find_key(str(log)) is None  # left alone from here on
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]


def test_files_that_the_script_has_not_closed_are_written_before_the_ranks_part(tmp_path):
    text = open(tmp_path / "text", "w")  # noqa: SIM115 - as a script does
    data = open(tmp_path / "data", "wb")  # noqa: SIM115
    text.write("text")
    data.write(b"data")
    elastic._flush_files()
    assert (tmp_path / "text").read_text() == "text" and (tmp_path / "data").read_bytes() == b"data"
    text.close(), data.close()


def test_a_stream_whose_buffer_the_script_has_detached_is_left_alone(monkeypatch, tmp_path):
    from matex_tf.resilience import elastic
    from matex_tf.world import terminal

    old = open(tmp_path / "printed", "w")  # noqa: SIM115
    new = io.TextIOWrapper(old.detach(), encoding="utf-8")
    monkeypatch.setattr(sys, "__stdout__", old)
    monkeypatch.setattr(sys, "stdout", new)
    print("of the new one")
    terminal.flush_text()
    assert (tmp_path / "printed").read_text() == "of the new one\n"
    print("more")
    elastic._flush_files()
    assert (tmp_path / "printed").read_text() == "of the new one\nmore\n"
    new.close()


ASKS_MPI = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from matex_tf.world import script_knowledge
everyone = MPI.COMM_WORLD
script_knowledge.watch_mpi()
from mpi4py.MPI import Intracomm, SUM
assert not script_knowledge.knows_ranks
{}
assert COMM_WORLD is everyone and script_knowledge.knows_ranks
"""


@pytest.mark.parametrize("how", ["from mpi4py.MPI import *", "COMM_WORLD = MPI.COMM_WORLD"])
def test_a_script_that_has_got_all_of_mpi_has_asked_for_its_rank(how):
    launch.execute([sys.executable, "-c", ASKS_MPI.format(how)], launch.environment(), 100).check()
