"""Rows are chosen before they are worked on, by their own rank only, and only where that is the same."""

from __future__ import annotations

import json

import launch

SCRIPT = """
import json
import sys

import keras
import numpy as np
import tensorflow as tf

import matex_tf
from matex_tf.analysis import pipeline_shapes
from matex_tf.sharding import pushdown
from matex_tf.keras import fit_call

keras.utils.set_random_seed(4)
keras.backend.set_floatx("float64")
worked = []

def note(value):
    worked.append(float(value))
    return np.int64(0)

def work(x):
    # What runs for each row is noted; an op that the library must take for harmless has to be without state.
    with tf.control_dependencies([tf.py_function(note, [x[0]], tf.int64)]):
        return x * 2, tf.reduce_sum(x)

pipeline_shapes._HARMLESS |= {"EagerPyFunc"}
rows = np.random.RandomState(0).rand(23, 3)
source = tf.data.Dataset.from_tensor_slices(rows).shuffle(23, seed=8)
plain = source.map(work, num_parallel_calls=2)
sources = {
    "batched": lambda: plain.batch(7),
    "dropped": lambda: plain.batch(7, drop_remainder=True).prefetch(2),
    "repeated": lambda: plain.batch(7).repeat(2),
    "last of one": lambda: plain.batch(11).prefetch(tf.data.AUTOTUNE),
    "small": lambda: plain.batch(2),
    "one batch": lambda: plain.batch(100),
    "shuffled after": lambda: plain.shuffle(23, seed=3).batch(7),
    "random": lambda: plain.map(lambda x, y: (x + tf.random.uniform([], 0, 1, x.dtype), y), 2).batch(7),
    "filtered": lambda: source.filter(lambda x: x[0] > 0).map(work, num_parallel_calls=2).batch(7),
    "sequential map": lambda: source.map(work).batch(7),
}
out, every = {}, sys.argv[1] == "all"
for name, make in sources.items():
    if not every and name not in ("batched", "repeated", "random", "filtered"):
        continue
    keras.utils.set_random_seed(4)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, activation="tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    dataset = make()
    worked.clear()
    history = model.fit(dataset, epochs=2, verbose=0).history["loss"]
    is_random = name == "random"
    weights = [] if is_random else [float(v) for w in model.get_weights() for v in np.ravel(w)]
    counts = matex_tf.runtime.objects.allgather(len(worked), "how many rows were worked on")
    out[name] = {"loss": [] if is_random else history, "weights": weights, "worked": counts}

x, y = rows, rows.sum(1, keepdims=True)
adapter_calls = []
plain_of_arrays = pushdown.deal_arrays
def spy(*args):
    result = plain_of_arrays(*args)
    adapter_calls.append(result is not None)
    return result
pushdown.deal_arrays = spy
for shuffle in (True, False) if every else (True,):
    keras.utils.set_random_seed(4)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    history = model.fit(x, y, batch_size=5, epochs=2, shuffle=shuffle, verbose=0, validation_data=(x, y)).history
    out[f"arrays {shuffle}"] = {"loss": [*history["loss"], *history["val_loss"]], "weights": [], "worked": []}
print(json.dumps([out, adapter_calls]))
"""


# 23 rows in batches of 7 are 3 batches of 3, 2, 2 rows and one of 2, 0 (one row of weight 0) and 0; two epochs.
WORKED = {
    "batched": [2 * 10, 2 * 7, 2 * 7],
    "dropped": [2 * 9, 2 * 6, 2 * 6],
    "repeated": [4 * 10, 4 * 7, 4 * 7],
    "last of one": [2 * 9, 2 * 9, 2 * 7],
    "small": [2 * 12, 2 * 12, 2 * 12],
    "one batch": [2 * 8, 2 * 8, 2 * 7],
} | {name: [46, 46, 46] for name in ("shuffled after", "random", "filtered", "sequential map")}


def test_rows_are_chosen_before_the_work(which):
    alone, _ = json.loads(launch.run_alone(SCRIPT, which).check().stdout)
    together, early = json.loads(launch.run(3, SCRIPT, which, timeout=200).check().stdout)
    assert early == [True] * len(early) and early, "arrays are cut at their indices"
    for name, want in alone.items():
        found = together[name]
        for part in ("loss", "weights"):
            pairs = list(zip(want[part], found[part]))
            assert len(want[part]) == len(found[part]), name
            assert all(abs(a - b) <= 1e-10 * max(abs(a), 1e-3) for a, b in pairs), (name, part, pairs)
        assert not found["worked"] or found["worked"] == WORKED[name], name


FILES = """
import os
import keras
import numpy as np
import tensorflow as tf

import matex_tf
from matex_tf.sharding import pushdown

keras.utils.set_random_seed(4)
os.makedirs("pictures")
for number in range(10):
    with open(f"pictures/{number}.txt", "w") as file:
        file.write(str(number / 10))

def read(path):
    value = tf.strings.to_number(tf.io.read_file(path))
    return tf.stack([value, 1.0]), value

chosen = []
plain = pushdown.deal_rows
def spy(*args):
    result = plain(*args)
    chosen.append(result is not None)
    return result
pushdown.deal_rows = spy
paths = sorted(f"pictures/{name}" for name in os.listdir("pictures"))
dataset = tf.data.Dataset.from_tensor_slices(paths).map(read, num_parallel_calls=2).batch(4)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(dataset, epochs=2, verbose=0)
print(matex_tf.runtime.objects.allgather(chosen, "who chose rows early"))
"""


def test_ranks_choose_rows_alike_where_they_read_files_that_the_script_made(tmp_path):
    result = launch.run(2, FILES, cwd=tmp_path).check()
    assert result.stdout.strip() == "[[True], [True]]"
    assert "different rows" not in result.stderr
