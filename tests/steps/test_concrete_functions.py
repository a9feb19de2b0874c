"""ConcreteFunctions that a loop calls, and functions with an open number of rows: batches of several sizes."""

import json
from pathlib import Path

import numpy as np
import pytest
from comparing import close

import launch

SCRIPT = f"""
import json
import sys

import numpy as np
import tensorflow as tf

sys.path.append({str(Path(__file__).parents[1])!r})
RANK = sys.modules["matex_tf"].rank() if "matex_tf" in sys.modules else 0
generator = np.random.RandomState(0)
x, y = generator.randn(21, 4), generator.randn(21, 3)
OPEN = [tf.TensorSpec([None, 4], tf.float64), tf.TensorSpec([None, 3], tf.float64)]
w, mean = tf.Variable(generator.randn(4, 3) + RANK), tf.Variable(np.zeros((4, 3)), trainable=False)
compute_loss = tf.function(lambda x, y: tf.reduce_mean((tf.tanh(x @ w) - y) ** 2), input_signature=OPEN)


@tf.function(input_signature=OPEN)
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.tanh(x @ w) - y) ** 2)
    mean.assign(0.9 * mean + tape.gradient(loss, w))
    w.assign_sub(0.1 * mean)
    return dict(loss=loss, rows=tf.shape(x)[0])


def train(call):
    for at in range(0, 21, 8):
        found = call(x[at : at + 8], y[at : at + 8])
        losses.append(float(found["loss"]) * int(found["rows"]))


losses, concrete = [], step.get_concrete_function()
train(lambda *batch: concrete(*map(tf.constant, batch)))
train(step)
train(lambda x, y: concrete(tf.constant(x), y=tf.constant(y)))
with tf.GradientTape() as tape:  # now its graph has residuals, too
    tape.gradient(compute_loss(x, y), w)
losses += [float(compute_loss(x[at : at + 8], y[at : at + 8])) for at in range(0, 21, 8)]
if "matex_tf" in sys.modules:
    import plans

    assert plans.is_shared(concrete) and plans.is_shared(step) and plans.is_shared(compute_loss)
print("SEEN" + json.dumps([*losses, *w.numpy().ravel().tolist(), *mean.numpy().ravel().tolist()]))
"""


def read(result):
    (line,) = [line for line in result.check().stdout.splitlines() if line.startswith("SEEN")]
    return np.array(json.loads(line[4:]))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("strategy", ["allreduce", "sharded"])
def test_a_loop_calls_a_concrete_function(strategy):
    want = read(launch.run_alone(SCRIPT))
    assert close(read(launch.run(2, SCRIPT, env={"MATEX_STRATEGY": strategy}, timeout=300)), want)
