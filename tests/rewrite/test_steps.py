"""Training steps as scripts write them, on ranks, nothing patched: results and variables are those alone."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest
import tensorflow as tf
from simulated_ranks import Simulation, find_difference

SPLITS = ((6, 5), True), ((5, 0, 6), False)
"""Rows of each rank, and whether the step is traced for any number of rows or for a fixed one."""
STEPS = 3
_random = np.random.default_rng(3)
X, Y = _random.normal(size=[11, 6]), _random.normal(size=[11, 2])
IMAGES, LABELS = _random.normal(size=[11, 8, 8, 3]), _random.integers(0, 3, [11])


pytestmark = pytest.mark.usefixtures("float64")


def _norm(one):
    return tf.sqrt(tf.reduce_sum(tf.square(one)))


def make_gradnorm():
    """Weights of two tasks from the norms of their gradients (Chen et al., arXiv 1711.02257), by one tape."""
    shared, first, second = (tf.Variable(_random.normal(size=size)) for size in ([6, 4], [4, 2], [4, 2]))
    tasks = tf.Variable(np.ones(2))

    def step(x, y):
        with tf.GradientTape(persistent=True) as tape:
            hidden = tf.tanh(x @ shared)
            one = tf.reduce_mean(tf.square(hidden @ first - y))
            other = tf.reduce_mean(tf.abs(hidden @ second - y))
            loss = tasks[0] * one + tasks[1] * other
            parts = [tasks[0] * one, tasks[1] * other]
            norms = tf.stack([_norm(tape.gradient(part, shared)) for part in parts])
            balance = tf.reduce_sum(tf.abs(norms - tf.stop_gradient(tf.reduce_mean(norms))))
        gradients = tape.gradient(loss, [shared, first, second])
        change = tape.gradient(balance, tasks)
        for variable, gradient in zip([shared, first, second], gradients):
            variable.assign_sub(0.1 * gradient)
        tasks.assign_sub(0.1 * change)
        return loss, balance

    return step, [X, Y]


def make_gan():
    """Two models, two updates, the second through the first; labels and noise are drawn in the step."""
    L = keras.layers
    critic = keras.Sequential([L.Input((8, 8, 3)), L.Conv2D(4, 3, strides=2), L.LeakyReLU(), L.Flatten(), L.Dense(1)])
    generator = keras.Sequential([L.Input((5,)), L.Dense(4 * 4 * 2), L.Reshape((4, 4, 2)),
                                  L.Conv2DTranspose(3, 3, strides=2, padding="same")])  # fmt: skip
    optimizers = keras.optimizers.Adam(1e-2), keras.optimizers.Adam(1e-2)
    for model, optimizer in zip((critic, generator), optimizers):
        optimizer.build(model.trainable_variables)
    seeds = keras.random.SeedGenerator(5)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)

    def step(real):
        count = tf.shape(real)[0]
        noise = keras.random.normal([count, 5], seed=seeds, dtype="float64")
        both = tf.concat([generator(noise), real], 0)
        labels = tf.concat([tf.ones([count, 1], "float64"), tf.zeros([count, 1], "float64")], 0)
        labels += 0.05 * keras.random.uniform([2 * count, 1], dtype="float64", seed=seeds)
        with tf.GradientTape() as tape:
            d_loss = loss(labels, critic(both))
        optimizers[0].apply(tape.gradient(d_loss, critic.trainable_variables), critic.trainable_variables)
        noise = keras.random.normal([count, 5], seed=seeds, dtype="float64")
        with tf.GradientTape() as tape:
            g_loss = loss(tf.zeros([count, 1]), critic(generator(noise)))
        optimizers[1].apply(tape.gradient(g_loss, generator.trainable_variables), generator.trainable_variables)
        return d_loss, g_loss

    return step, [IMAGES]


def make_distillation():
    """A student learns from a teacher and from labels; both losses, and a metric read in the step."""
    L = keras.layers
    teacher, student = (
        keras.Sequential(
            [L.Input((8, 8, 3)), L.Conv2D(n, 3, activation="relu"), L.GlobalAveragePooling2D(), L.Dense(3)]
        )
        for n in (6, 3)
    )
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.5)
    optimizer.build(student.trainable_variables)
    metric = keras.metrics.SparseCategoricalAccuracy()
    metric.update_state(LABELS[:2], np.eye(3)[:2])
    metric.reset_state()

    def step(images, labels):
        soft = tf.nn.softmax(teacher(images) / 3.0)
        with tf.GradientTape() as tape:
            logits = student(images, training=True)
            hard = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
            close = tf.reduce_mean(keras.losses.kl_divergence(soft, tf.nn.softmax(logits / 3.0))) * 9.0
            loss = 0.3 * hard + 0.7 * close
        optimizer.apply(tape.gradient(loss, student.trainable_variables), student.trainable_variables)
        metric.update_state(labels, logits)
        return loss, metric.result()

    return step, [IMAGES, LABELS]


def make_keras(layers, optimizer, inputs, labels, loss, metrics=()):
    """Keras' own `train_step`, as `fit` traces it."""
    model = keras.Sequential([keras.layers.Input(inputs.shape[1:]), *layers])
    model.compile(optimizer, loss, metrics=list(metrics), jit_compile=False)
    data = tf.constant(inputs), tf.constant(labels)
    model._symbolic_build(data_batch=data)
    return (lambda x, y: model.train_step((x, y))), [inputs, labels]


def make_cnn():
    L = keras.layers
    layers = [L.Conv2D(6, 3), L.BatchNormalization(), L.ReLU(), L.MaxPooling2D(2), L.Dropout(0.3), L.Flatten(),
              L.GaussianNoise(0.1), L.Dropout(0.4), L.Dense(3)]  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return make_keras(layers, keras.optimizers.Adam(0.01, global_clipnorm=0.5), IMAGES, LABELS, loss,
                      ["accuracy", keras.metrics.SparseCategoricalCrossentropy(from_logits=True)])  # fmt: skip


def make_recurrent():
    L = keras.layers
    words = _random.integers(0, 20, [11, 7])
    layers = [
        L.Embedding(20, 4, mask_zero=True),
        L.Bidirectional(L.LSTM(3, return_sequences=True)),
        L.GRU(4),
        L.Dense(1),
    ]
    return make_keras(layers, keras.optimizers.RMSprop(0.01), words, Y[:, :1], "mse", ["mae", "r2_score"])


class Block(keras.layers.Layer):
    """A block of a transformer."""

    def __init__(self):
        super().__init__()
        self.attention = keras.layers.MultiHeadAttention(2, 4, dropout=0.1)
        self.norms = [keras.layers.LayerNormalization() for _ in range(2)]
        self.inner, self.outer = keras.layers.Dense(16, activation="gelu"), keras.layers.Dense(8)

    def build(self, shape):
        self.attention.build(shape, shape)
        for one in (*self.norms, self.inner):
            one.build(shape)
        self.outer.build((*shape[:-1], 16))

    def call(self, x, training=None):
        x = self.norms[0](x + self.attention(x, x, training=training, use_causal_mask=True))
        return self.norms[1](x + self.outer(self.inner(x)))


def make_transformer():
    words = _random.integers(0, 20, [11, 7])
    layers = [
        keras.layers.Embedding(20, 8),
        Block(),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(2),
    ]
    return make_keras(layers, keras.optimizers.AdamW(0.01), words, Y, "mse")


def make_contrastive():
    """Each row meets all others (SimCLR): the rows are gathered, and what follows is computed whole."""
    weights = tf.Variable(_random.normal(size=[6, 4]))

    def step(x):
        with tf.GradientTape() as tape:
            one, other = (tf.math.l2_normalize((x + shift) @ weights, 1) for shift in (0.0, 0.3))
            logits = tf.matmul(one, other, transpose_b=True) * 5.0
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(x)[0]), logits))
        weights.assign_sub(tape.gradient(loss, weights))
        return loss

    return step, [X]


def make_running_extremes():
    """State that does not begin with zeros, and figures of rows that only some steps look at."""
    least, turns = tf.Variable(np.full(6, 100.0)), tf.Variable(0)
    table = tf.Variable(_random.normal(size=[4, 2]))

    def step(x, labels):
        least.assign(tf.minimum(least, tf.reduce_min(x, 0)))
        turns.assign_add(1)
        table.scatter_nd_add(labels[:, tf.newaxis], x[:, :2])
        return tf.cond(tf.reduce_mean(x) > tf.cast(turns, x.dtype), lambda: tf.reduce_sum(x), lambda: tf.reduce_max(x))

    return step, [X, LABELS]


MAKERS = [make_gradnorm, make_gan, make_distillation, make_cnn, make_recurrent, make_transformer, make_contrastive,
          make_running_extremes]  # fmt: skip
LARGE = (make_recurrent, make_transformer)
"""Steps of which the usual run makes the first split: their ops are traced longest."""


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__.removeprefix("make_"))
def test_ranks_train_as_the_step_alone(make, pytestconfig):
    step, arguments = make()
    everything = make not in LARGE or pytestconfig.getoption("--all")
    for counts, is_open in SPLITS if everything else SPLITS[:1]:
        simulation = Simulation(step, arguments, is_open=is_open)
        expected = simulation.run_alone(STEPS)
        for rank, given in enumerate(simulation.run(counts, STEPS)):
            assert not find_difference(expected, given, 1e-9), f"rank {rank}, {counts} rows"


def test_loss_metrics_and_gradients_travel_together():
    """Without statistics of the batch a step is one wave; clipping and metrics add none."""
    step, arguments = make_distillation()
    simulation = Simulation(step, arguments)
    simulation.run((6, 5))
    assert simulation.waves == 1
