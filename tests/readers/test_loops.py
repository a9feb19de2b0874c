"""`next_train_batch` in loops of one's own and in feed_dict: each step is that of the sequential run."""

import json

import numpy as np
import pytest

import launch

SCRIPT = """
import json, sys
import numpy as np
import tensorflow as tf
import matex_tf
from matex_tf.runtime import objects
from matex_tf.world import world
from matex_tf.readers import DataSet

v1 = tf.compat.v1
said = {}

def batches(path, rows, **options):
    data = DataSet("CSV", path, labels=["y"], distribution="batch", batch_size=rows, **options)
    for _ in range(2 * -(-data.global_size // rows)):
        yield data.next_train_batch(rows)

def sequential(batches):
    w = np.zeros((5, 1))
    for x, y in batches:
        w = w - 0.125 * 2 * x.T @ (x @ w - y) / len(x)
    return w

def eager(batches, compiled):
    w, optimizer = tf.Variable(tf.zeros((5, 1), tf.float64)), tf.keras.optimizers.SGD(0.125)
    optimizer.build([w])
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.matmul(x, w) - y) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])
        return loss
    step = tf.function(step) if compiled else step
    for x, y in batches:
        step(x, y)
    return w.numpy()

def fed(batches):
    with tf.Graph().as_default():
        x, y = v1.placeholder(tf.float64, (None, 5)), v1.placeholder(tf.float64, (None, 1))
        w = v1.get_variable("w", (5, 1), tf.float64, v1.zeros_initializer())
        loss = tf.reduce_mean((tf.matmul(x, w) - y) ** 2)
        train = v1.train.GradientDescentOptimizer(0.125).minimize(loss)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for rows, labels in batches:
                session.run(train, {x: rows, y: labels})
            return session.run(w)

for path, size in ((sys.argv[1], 8), (sys.argv[1], 2), (sys.argv[2], 2)):
    expected = sequential(batches(path, size, rank=0, size=1))
    for name, found in (("eager", eager(batches(path, size), False)), ("function", eager(batches(path, size), True)),
                        ("feed_dict", fed(batches(path, size)))):
        same = len(set(objects.allgather(found.tobytes(), "weights"))) == 1
        said[f"{name} {size} of {path}"] = [expected.ravel().tolist(), found.ravel().tolist(), same]
print("SAID" + json.dumps(said))
"""


@pytest.mark.parametrize("ranks", (1, 2, 3))
def test_steps_are_those_of_the_sequential_run(tmp_path, ranks):
    random = np.random.RandomState(0)
    x = random.rand(53, 5)
    table = np.concatenate([x, x @ random.rand(5, 1)], axis=1)
    for name, rows in (("all", 53), ("few", 2)):
        np.savetxt(tmp_path / f"{name}.csv", table[:rows], "%.17g", ",", header="a,b,c,d,e,y", comments="")
    output = launch.run(ranks, SCRIPT, tmp_path / "all.csv", tmp_path / "few.csv", timeout=200).check().stdout
    (line,) = [line for line in output.splitlines() if line.startswith("SAID")]
    for name, (expected, found, same) in json.loads(line[4:]).items():
        assert same, f"{name}: the weights of the ranks differ"
        assert found == pytest.approx(expected, rel=1e-10, abs=1e-13), name
