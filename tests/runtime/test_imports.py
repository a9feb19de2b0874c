"""When a script imports TensorFlow, and how, is its own affair: nothing of ours imports it before."""

import json
import sys

import pytest

import launch

BEGIN = """
import json, os, sys
if len(sys.argv) > 1 and sys.argv[1] == "line":
    import matex_tf
loaded = sorted({name.partition(".")[0] for name in sys.modules} & {"tensorflow", "keras", "tf_keras"})
assert not loaded, loaded
"""
FIT = """
import numpy as np
rng = np.random.default_rng(0)
x, y = rng.normal(size=(64, 4)).astype("float32"), rng.normal(size=(64, 1)).astype("float32")
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
print("LOSSES" + json.dumps(model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"]))
if "matex_tf" in sys.modules:
    from matex_tf import ops
    assert ops.count_updates() == (8 if sys.modules["matex_tf"].is_active() else 0), "each gradient was reduced once"
"""
KERAS_2 = (
    BEGIN
    + """
os.environ["TF_USE_LEGACY_KERAS"] = "1"
from tensorflow.keras import layers
import tensorflow.keras as keras
import tf_keras
assert issubclass(layers.Dense, tf_keras.layers.Layer)
"""
    + FIT
    + "assert isinstance(model, tf_keras.Model)\n"
)
KERAS_FIRST = BEGIN + "import keras\n" + FIT
IN_A_THREAD = (
    BEGIN
    + """
import gc, random, threading
before, collected = random.random(), []
def load():
    global keras
    gc.callbacks.append(lambda phase, _: collected.append(phase))
    import tensorflow
    gc.callbacks.clear()
    assert len(gc.get_objects(generation=2)) > 100_000 and gc.get_freeze_count() == 0
    keras = tensorflow.keras
thread = threading.Thread(target=load)
thread.start()
thread.join()
print("DRAWN", before)
assert gc.isenabled() and (len(collected) < 50) == ("matex_tf" in sys.modules), len(collected)
"""
    + FIT
)
"""The generators of Python agree before TensorFlow is there, in whatever thread it is imported."""


def losses(result):
    (line,) = [line for line in result.check().stdout.splitlines() if line.startswith("LOSSES")]
    return json.loads(line[6:])


@pytest.mark.parametrize(
    "script, word",
    [
        pytest.param(KERAS_2, "line", marks=pytest.mark.more),
        pytest.param(KERAS_FIRST, "module", marks=pytest.mark.more),
        (IN_A_THREAD, "line"),
    ],
)
def test_a_script_imports_tensorflow_its_own_way(script, word):
    together = launch.run(2, script, word, module=word != "line", cold=True)
    assert losses(together) == pytest.approx(losses(launch.run_alone(script, "alone", cold=True)), rel=1e-5)


WITHOUT = (
    BEGIN
    + """
import random
import matex_tf
from matex_tf.runtime import objects
from matex_tf import ops
rank = matex_tf.rank()
assert len({tuple(row) for row in objects.allgather([random.random()], "a draw")}) == 1
if "one" in sys.argv and rank == 1:
    import tensorflow  # and the others never
assert objects.allgather(rank, "a number") == [0, 1]
with open("made", "w") as file:
    file.write("by all")
assert os.path.exists("made")
assert ("tensorflow" in sys.modules) == ("one" in sys.argv and rank == 1)
if "raise" in sys.argv and rank == 1:
    raise ValueError("of my own")
print("all is well")
"""
)


@pytest.mark.parametrize("words", ["none", "one"])
def test_a_script_may_do_without(words, tmp_path):
    result = launch.run(2, WITHOUT, words, cwd=tmp_path, cold=True).check()
    assert result.stdout.count("all is well") == 1 and (tmp_path / "made").read_text() == "by all"


def test_an_error_without_tensorflow_is_told_once(tmp_path):
    result = launch.run(2, WITHOUT, "raise", cwd=tmp_path, cold=True)
    assert result.returncode == 1 and result.stderr.count("ValueError: of my own") == 1
    assert "rank 1 of 2 on " in result.stderr


@pytest.mark.parametrize(
    "options, variables, lines", [(["-i"], {}, 1), ([], {}, 0), (["-i"], {"MATEX_DISABLE": "1"}, 0)]
)
def test_an_interactive_session_learns_how_ranks_are_started(options, variables, lines):
    command = [sys.executable, *options, "-c", "import matex_tf, matex_tf.readers"]
    result = launch.execute(command, launch.environment(variables), 60).check()
    for way in ("matex run -n 4 script.py", 'matex_tf.launch("script.py", ranks=4)'):
        assert result.stderr.count(way) == lines
