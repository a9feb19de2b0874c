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


@pytest.mark.timeout(200)
def test_a_rank_computes_its_rows_of_a_shared_call():
    result = launch.run(2, COUNTED, env=EXPLAINED).check()
    assert "rows [8, 4, 4, 4]" in result.output


@pytest.mark.timeout(200)
def test_what_the_first_step_did_not_show_is_an_error():
    result = launch.run(2, LATE, env=EXPLAINED)
    assert result.returncode != 0
    assert "MATEX_EAGER=whole" in result.output
    assert "unreached" not in result.output
