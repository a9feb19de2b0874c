"""Tracebacks show the frames that they have alone, and name lines of the script."""

import os
import re

import pytest

import launch

OF_AN_OP = """
import keras, numpy as np, tensorflow as tf

class Mine(keras.layers.Layer):
    def call(self, x):
        return tf.debugging.check_numerics(x, "not a number of mine")

model = keras.Sequential([keras.Input((2,)), Mine(), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.full((8, 2), np.nan), np.ones((8, 1)), verbose=0)
"""


@pytest.mark.parametrize("frames", ["script", pytest.param("full", marks=pytest.mark.more)])
def test_of_where_an_op_was_made_the_lines_of_the_script_are_shown(frames):
    """TensorFlow tells a hundred lines of libraries before the one that counts."""
    result = launch.run_failing(2, OF_AN_OP, env={"MATEX_TRACEBACK": frames})
    block = result.stderr.partition("Detected at node")[2].partition("not a number of mine")[0]
    files = [os.path.basename(path) for path in re.findall('^  File "(.*)", line', block, re.MULTILINE)]
    files = [name for name in files if name != "warm_server.py"]  # which starts the script here
    assert files[-1] == "script.py" or frames == "full", result.stderr
    assert set(files) >= {"script.py"} and (set(files) == {"script.py"}) == (frames == "script"), files


TRACED = """
import keras
import numpy as np

class Mine(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise ValueError("in a callback")

def train():
    model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0, callbacks=[Mine()])

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
try:
    train()
except ValueError as error:
    raise RuntimeError("of my own") from error
"""


@pytest.mark.parametrize("frames", ["script", "full"])
def test_a_traceback_is_of_the_script(frames):
    result = launch.run_failing(2, TRACED, env={"MATEX_TRACEBACK": frames})
    found = re.findall('^  File "(.*)", line .*, in (.*)$|^(\\w+Error: .*)$', result.stderr, re.MULTILINE)
    seen = [(os.path.basename(path), name) if path else said for path, name, said in found]
    seen = [one for one in seen if one[0] != "warm_server.py"]  # which starts the script here
    script = [one for one in seen if one[0] == "script.py" or isinstance(one, str)]
    assert script == [
        ("script.py", "<module>"),
        ("script.py", "train"),
        ("script.py", "on_epoch_end"),
        "ValueError: in a callback",
        ("script.py", "<module>"),
        "RuntimeError: of my own",
    ]
    assert (("keras_data.py", "fit") in seen) == (frames == "full")
    assert len(seen) - len(script) <= 1 or frames == "full", "the line of Keras that raises it again"
    assert ("MATEX_TRACEBACK=full shows the frames of matex_tf, too" in result.stderr) == (frames == "script")


WAY_BACK = """
import tensorflow as tf

@tf.custom_gradient
def alike(x):
    def back(upstream):
        raise ValueError("no way back")
    return x, back

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(alike(x @ w))
    w.assign_sub(tape.gradient(loss, w))

w = tf.Variable([[1.0], [2.0]])
step(tf.ones((8, 2)))
"""


@pytest.mark.parametrize("frames", ["script", pytest.param("full", marks=pytest.mark.more)])
def test_what_autograph_says_of_a_gradient_function_is_of_the_script(frames):
    result = launch.run_failing(2, WAY_BACK, env={"MATEX_TRACEBACK": frames})
    told = result.stderr.partition("in user code:")[2].partition("ValueError: no way back")
    seen = re.findall('^    File ".*/(.*)", line .*, in (\\w+)', told[0], re.MULTILINE)
    script = [("script.py", "step"), ("script.py", "back")]
    assert told[1] and [one for one in seen if one[0] == "script.py"] == script
    assert (seen == script) == (frames == "script"), seen


RAISES = """
import sys, traceback
import tensorflow as tf

def cost(x):
    if "traced" in sys.argv:
        raise ValueError("no cost")
    tf.debugging.assert_less(tf.reduce_max(x), 1.5, "too large")
    return tf.reduce_mean(x ** 2)

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = cost(x @ w)
    w.assign_sub(tape.gradient(loss, w))
    return loss

def train():
    if "taped" in sys.argv:
        with tf.GradientTape():
            return step(tf.ones((8, 2)))
    return step(tf.ones((8, 2)))

w = tf.Variable([[1.0], [2.0]])
for _ in range(2):
    try:
        train()
    except Exception:
        print(traceback.format_exc())
train()
"""


def read_frames(text):
    """The frames of the tracebacks in `text`, from the script on, as (file, function); not where an op was made."""
    text = re.sub("Detected at node.*?(Traceback|$)", "", text, flags=re.DOTALL)
    frames = re.findall('File "(?:.*/)?(.*)", line \\d+, in (\\w+|<\\w+>)', text)
    frames = [(re.sub("__autograph_generated_file.*", "AutoGraph", file), name) for file, name in frames]
    return frames[frames.index(("script.py", "<module>")) :]


@pytest.mark.parametrize("arguments", [["traced"], ["run"], pytest.param(["traced", "taped"], marks=pytest.mark.more)])
def test_the_traceback_of_a_function_has_the_frames_that_it_has_alone(arguments):
    alone, ranks = launch.run_alone(RAISES, *arguments), launch.run_failing(2, RAISES, *arguments)
    assert alone.returncode == 1
    assert read_frames(ranks.stdout) == read_frames(alone.stdout), "where the script prints it"
    assert read_frames(ranks.stderr) == read_frames(alone.stderr), "where it ends the script"
    if "traced" in arguments:
        line = RAISES.partition("raise")[0].count("\n") + 1
        assert f"failed at script.py, line {line} (" in ranks.stderr, "not at a line that AutoGraph has generated"


CAUGHT = """
import logging, sys
import keras
import numpy as np

class Mine(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise KeyError("in a callback")

logging.basicConfig(stream=sys.stdout, format="%(message)s")
x, y = np.ones((8, 4)), np.ones((8, 1))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
for act in (
    lambda: model.fit(x, y, verbose=0, callbacks=[Mine()]),
    lambda: model.fit(x, y[:5], verbose=0),
    lambda: model.predict(x[:, :2], verbose=0),
    lambda: model.save("there/is/none.keras"),
    lambda: open("there/is/none"),
    lambda: np.load("there/is/none.npy"),
):
    try:
        act()
    except Exception:
        logging.exception("caught")
"""


def test_what_a_script_logs_of_errors_has_the_frames_that_it_has_alone():
    alone, ranks = (
        start().check().stdout for start in (lambda: launch.run_alone(CAUGHT), lambda: launch.run(2, CAUGHT))
    )
    assert read_frames(ranks) == read_frames(alone) and ranks.count("Traceback") >= 6


def test_an_error_in_a_compiled_library_names_the_line_of_the_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import matex_tf, tensorflow, h5py\nh5py.File('none.h5')\n")
    assert "failed at train.py, line 2" in launch.run_failing(2, script, cwd=tmp_path).output


def test_an_import_that_comes_too_late_says_which_line_to_move(tmp_path):
    script = tmp_path / "matex_tf" / "train.py"  # whose code it is does not depend on the folder's name
    script.parent.mkdir()
    script.write_text("import tensorflow as tf\nx = tf.constant(1.0)\nimport matex_tf\n")
    result = launch.run_failing(2, script, module=False)
    assert f"Move the line `import matex_tf` ({script}, line 3)" in result.output


def test_the_line_of_a_strategy_is_found_in_any_folder(tmp_path):
    script = tmp_path / "tensorflow" / "keras" / "train.py"
    script.parent.mkdir(parents=True)
    script.write_text("import tensorflow as tf\ndef made():\n    tf.distribute.OneDeviceStrategy('cpu')\nmade()\n")
    result = launch.run_failing(2, script)
    assert f"{script}, line 3: tf.distribute.OneDeviceStrategy" in result.output
