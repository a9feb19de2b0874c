"""Calls of Keras models and of `tf.function`s in eager code while tapes record are under ranks what they are alone."""

import re
from pathlib import Path

import pytest
from comparing import differences, stored

import launch

CASES = Path(__file__).with_name("tape_calls_cases.py")
EXPLAINED = {"MATEX_EXPLAIN": "1"}
SHARED = {
    "draws3",
    "statistics3",
    "logits3",
    "words3",
    "statistics2",
    "logits2",
    "words2",
    "head",
    "lookup",
    "changed",
    "drawn",
    "rates",
    "attacked",
    "maker",
    "critic",
    "penalized",
    "forward",
}


@pytest.mark.timeout(500)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.more)])
def test_calls_under_tapes_are_shared_and_give_what_they_give_alone(ranks, tmp_path):
    (tmp_path / "alone").mkdir()
    launch.run_alone(CASES, tmp_path / "alone", timeout=200).check()
    result = launch.run(ranks, CASES, tmp_path, env={**launch.ALL_FILES, **EXPLAINED}, timeout=400).check()
    (alone,) = stored(tmp_path / "alone")
    wrong = differences(alone, stored(tmp_path, ranks))
    assert not wrong, "\n".join(wrong)
    assert set(re.findall(r"the call of '(\w+)' is sharded", result.output)) == SHARED


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
INNER = """
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(1)
inputs = keras.Input((3,))
features = keras.layers.Dense(4, activation="tanh")(inputs)
model = keras.Model(inputs, [features, keras.layers.Dense(2)(features)])
frozen = keras.models.clone_model(model)
frozen.trainable = False
x = tf.constant(np.random.RandomState(1).randn(8, 3).astype("float32"))
for turn in range(3):
    with tf.GradientTape(persistent=True) as tape:
        made, result = model(x)
        loss = tf.reduce_sum(tf.square(result)) + tf.reduce_sum(made)
    with tf.GradientTape() as of_results:  # it does not know the call
        of_results.watch(made)
        cubes = tf.reduce_sum(made**3)
    with tf.GradientTape() as of_frozen:
        unknown, _ = frozen(x)
        of_frozen.watch(unknown)
        squares = tf.reduce_sum(unknown**2)
    unrelated = tf.zeros([2])
    for gradient in (
        tape.gradient(loss, made),
        tape.gradient(loss, {"made": [made, unrelated]}, unconnected_gradients="zero")["made"][0],
        of_results.gradient(cubes, made),
        of_frozen.gradient(squares, unknown),
    ):
        print("gradient", tf.reduce_sum(tf.abs(gradient)).numpy().round(4))
    for weight, gradient in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
        weight.assign_sub(0.01 * gradient)
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
tape.gradient(loss, made)
print("unreached")
"""


@pytest.mark.timeout(200)
def test_a_result_of_a_call_has_gradients_of_results_made_of_it():
    alone, together = launch.run_alone(INNER).check(), launch.run(2, INNER).check()
    lines = re.findall(r"gradient \d.*", alone.output)
    assert len(lines) == 12
    assert re.findall(r"gradient \d.*", together.output) == lines


@pytest.mark.timeout(200)
def test_a_rank_computes_its_rows_of_a_shared_call():
    result = launch.run(2, COUNTED, env=EXPLAINED).check()
    assert "rows [8, 4, 4, 4]" in result.output


@pytest.mark.timeout(200)
@pytest.mark.parametrize("script", [LATE, LATE_INNER])
def test_what_the_first_step_did_not_show_is_an_error(script):
    result = launch.run(2, script, env=EXPLAINED)
    assert result.returncode != 0
    assert "MATEX_EAGER=whole" in result.output
    assert "unreached" not in result.output
    assert result.output.count("gradient 0.0") == 2 * (script is LATE_INNER)
