"""Calls of Keras models in eager code while tapes record. (What they give is in `sameness/cases/tape_calls.py`.)"""

import pytest

import launch

EXPLAINED = {"MATEX_EXPLAIN": "1"}

COUNTED = """
import keras, numpy as np, tensorflow as tf
from tensorflow.python.framework import ops
seen = []
plain = ops.gradient_registry._registry["MatMul"]["type"]

def gradient(op, one):
    noted = tf.numpy_function(lambda rows: seen.append(int(rows)) or rows, [tf.raw_ops.Shape(input=one)[0]], tf.int32)
    with tf.control_dependencies([noted]):
        return plain(op, tf.identity(one))

ops.gradient_registry._registry["MatMul"]["type"] = gradient
from matex_tf.rewrite.nodes import Decision
from matex_tf.rewrite.placement import WHOLE
from matex_tf.rewrite.rules import RULES
RULES["PyFunc"] = lambda node: Decision([None] * len(node.inputs), [WHOLE] * len(node.op.outputs))
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
x = tf.constant(np.random.RandomState(1).randn(8, 3).astype("float32"))
for turn in range(4):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x)))
    tape.gradient(loss, model.trainable_variables)
print("rows", seen)
"""
LATE = """
import keras, numpy as np, tensorflow as tf
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
x = tf.constant(np.random.RandomState(1).randn(8, 3).astype("float32"))
for turn in range(3):
    with tf.GradientTape(persistent=True) as tape:
        made = model(x)
        loss = tf.reduce_mean(tf.square(made))
    tape.gradient(loss, model.trainable_variables)
tape.jacobian(made, model.trainable_variables)
print("unreached")
"""
LATE_INNER = """
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(1)
inputs = keras.Input((3,))
features = keras.layers.Dense(4, activation="tanh")(inputs)
model = keras.Model(inputs, [features, keras.layers.Dense(2)(features)])
x = tf.constant(np.random.RandomState(1).randn(8, 3).astype("float32"))
for turn in range(3):
    with tf.GradientTape(persistent=True) as tape:
        made, result = model(x)
        loss = tf.reduce_sum(tf.square(result))
        of_made = tf.reduce_sum(tf.square(made))
    tape.gradient(loss, model.trainable_variables)
print("gradient", float(tf.reduce_sum(tape.gradient(of_made, made) - 2 * made)))
print("gradient", float(tf.reduce_sum(tape.gradient(loss, result) - 2 * result)))
one, other = tf.Variable(tf.ones([3, 4])), tf.Variable(tf.ones([4, 2]))

@tf.function
def net(x):
    hidden = tf.tanh(x @ one)
    return hidden, hidden @ other

for turn in range(3):
    with tf.GradientTape(persistent=True) as of_net:
        hidden, result = net(x)
        loss_of_net = tf.reduce_sum(tf.square(result))
        both = loss_of_net + tf.reduce_sum(tf.square(hidden))
    of_net.gradient(loss_of_net, [one, other])
# For a tape, a tf.function is one op: its results do not depend on one another.
print("gradient", float(tf.reduce_sum(of_net.gradient(both, hidden) - 2 * hidden)))
tape.gradient(loss, made)
print("unreached")
"""


@pytest.mark.timeout(200)
def test_a_rank_computes_its_rows_of_a_shared_call():
    result = launch.run(2, COUNTED, env=EXPLAINED).check()
    assert "rows [8, 4, 4, 4]" in result.output
    assert "have one row each" in launch.run(2, COUNTED.replace("randn(8", "randn(1")).check().stderr


@pytest.mark.timeout(200)
@pytest.mark.parametrize("script", [LATE, LATE_INNER])
def test_what_the_first_step_did_not_show_is_an_error(script):
    result = launch.run(2, script, env=EXPLAINED)
    assert result.returncode != 0
    assert "MATEX_EAGER=whole" in result.output
    assert "unreached" not in result.output
    assert result.output.count("gradient 0.0") == 3 * (script is LATE_INNER)
