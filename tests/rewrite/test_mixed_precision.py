"""Steps in float16 and bfloat16: sums are rounded, and overflow, where the script's do."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest
import tensorflow as tf
from simulated_ranks import Simulation, find_difference

from matex_tf.rewrite.placement import WHOLE

pytestmark = pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 names and builds its optimizers otherwise")
L = keras.layers
SPLITS = ((6, 5), (5, 0, 6))
_random = np.random.default_rng(3)
X, Y = _random.normal(size=[11, 6]).astype(np.float32), _random.normal(size=[11, 2]).astype(np.float32)
IMAGES, LABELS = _random.normal(size=[11, 8, 8, 3]).astype(np.float32), _random.integers(0, 3, [11])
HALVES = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


@pytest.fixture(autouse=True)
def _dtypes():
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float32")
    keras.utils.set_random_seed(1)
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


def _train(layers, optimizer, inputs, labels, loss, metrics=()):
    model = keras.Sequential([L.Input(inputs.shape[1:]), *layers])
    model.compile(optimizer, loss, metrics=list(metrics), jit_compile=False)
    model._symbolic_build(data_batch=(tf.constant(inputs), tf.constant(labels)))
    simulation = Simulation(lambda x, y: model.train_step((x, y)), [inputs, labels])
    return model, simulation


def _make_mlp():
    layers = [L.Dense(8, activation="gelu"), L.LayerNormalization(), L.Dense(2, dtype="float32")]
    return _train(layers, keras.optimizers.SGD(0.1, momentum=0.9), X, Y, "mse", ["mae"])


def _make_cnn():
    layers = [L.Conv2D(6, 3), L.BatchNormalization(), L.ReLU(), L.MaxPooling2D(2), L.Dropout(0.3), L.Flatten(),
              L.Dense(3)]  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return _train(layers, keras.optimizers.SGD(0.05, global_clipnorm=0.5), IMAGES, LABELS, loss, ["accuracy"])


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("make", [_make_mlp, _make_cnn], ids=["mlp", "cnn"])
def test_ranks_train_as_the_step_alone(make, half):
    keras.config.set_dtype_policy(f"mixed_{half}")
    model, simulation = make()
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) == (half == "float16")
    expected = simulation.run_alone(2)
    for counts in SPLITS:
        for rank, given in enumerate(simulation.run(counts, 2)):
            assert not find_difference(expected, given, 4 * HALVES[half]), f"rank {rank}, {counts} rows"


def test_the_loss_scale_is_halved_where_a_sum_of_parts_is_too_large_for_float16():
    """Gradients of 11 rows overflow, those of 6 do not; the next step, of half the scale, is taken."""
    keras.config.set_dtype_policy("mixed_float16")
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**13)
    inputs, labels = np.ones([11, 2], np.float32), np.zeros([11, 1], np.float32)
    layers = [L.Dense(1, use_bias=False)]
    model, simulation = _train(layers, optimizer, inputs, labels, lambda _, made: tf.reduce_sum(made, -1) * 11.0)
    before = model.get_weights()[0]
    for given in [simulation.run_alone(2), *simulation.run((6, 5), 2)]:
        scale = next(one for one, value in zip(given[-len(simulation.variables) :], simulation.variables)
                     if value is optimizer.dynamic_scale.value)  # fmt: skip
        weights = next(one for one, value in zip(given[-len(simulation.variables) :], simulation.variables)
                       if value is model.trainable_variables[0].value)  # fmt: skip
        assert scale == 2.0**12
        np.testing.assert_allclose(weights, before - 0.1 * 11, rtol=1e-2)


@pytest.mark.parametrize("half", HALVES)
def test_sums_in_half_precision(half):
    """Also those too large for their dtype on the way, or at the end."""
    rows = np.full([1500, 2], 99.0, np.float32) + _random.normal(size=[1500, 2]).astype(np.float32)

    def step(x):
        x = tf.cast(x, half)
        wide = tf.cast(tf.reduce_sum(x, 0), tf.float32)
        means = tf.reduce_mean(x, 0), tf.reduce_mean(x), tf.raw_ops.EuclideanNorm(input=x, axis=[0])
        others = wide, tf.reduce_sum(x / 64, 0) * 0.5, tf.reduce_sum(-x, 0) - tf.reduce_sum(x, 0), tf.reduce_max(x, 0)
        return [tf.cast(one, tf.float32) for one in (*means, *others)]

    simulation = Simulation(step, [rows])
    expected = simulation.run_alone()
    assert np.isinf(expected[3]).all() == (half == "float16")
    wide = rows.astype(np.float64)
    # Alone, on CPUs, TensorFlow adds up numbers of float16 in float16: the first of these overflow.
    expected[:3] = wide.mean(0), wide.mean(), np.sqrt((wide**2).sum(0))
    off = np.abs(expected[4] - wide.sum(0) / 128).max()
    expected[4] = wide.sum(0) / 128
    for given in [*simulation.run((700, 800)), *simulation.run((500, 0, 1000))]:
        for index, (x, y) in enumerate(zip(expected, given)):
            np.testing.assert_allclose(y, x, 4 * HALVES[half], off if index == 4 else 0)


def test_whole_numbers_overflow_as_alone():
    def step(x):
        small = tf.cast(x, tf.int8)
        total = tf.reduce_sum(tf.cast(x, tf.int32)) * 2**24
        return tf.cast(tf.reduce_sum(small), tf.int32), tf.cast(total, tf.int64), tf.cast(total, tf.int16)

    simulation = Simulation(step, [np.full([6], 100, np.int64)])
    expected = simulation.run_alone()
    for given in simulation.run((4, 2)):
        assert not find_difference(expected, given)


def test_a_sum_in_half_precision_is_whole_where_it_arises():
    step = Simulation(lambda x: tf.reduce_sum(tf.cast(x, tf.float16), 0) * 2, [X])
    assert step.program.outputs[0].placement == WHOLE
    assert Simulation(lambda x: tf.reduce_sum(x, 0) * 2, [X]).program.outputs[0].placement != WHOLE


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_the_sums_of_turns_of_a_loop_travel_once(policy):
    """Each turn adds a part of the gradients of a recurrent layer; no turn has a collective."""
    keras.config.set_dtype_policy(policy)
    rows = _random.normal(size=[11, 9, 3]).astype(np.float32)
    layers = [L.SimpleRNN(4, return_sequences=True), L.GRU(3), L.Dense(2, dtype="float32")]
    _, simulation = _train(layers, keras.optimizers.SGD(0.1), rows, Y, "mse")
    expected = simulation.run_alone(2)
    for given in simulation.run((6, 5), 2):
        assert not find_difference(expected, given, 4 * HALVES.get(policy[6:], 1e-6))
    assert simulation.waves <= 2
