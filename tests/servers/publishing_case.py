"""Trains a model in pieces while the script keeps, sets and reads weights; stores the weights after each step.

Arguments: the folder, and the ways to publish pieces: "off" or "on", which is MATEX_OVERLAP, with "in memory", "by
messages" or "of a device", as in "on: by messages". The expected weights are those with `allreduce`.
"""

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import matex_tf
from matex_tf import settings
from matex_tf.servers.pieces import slots
from matex_tf.steps import publishing

x = tf.constant(np.random.default_rng(0).normal(size=(36, 6)).astype("float32"))
found = {}


def network():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(64, "tanh", kernel_constraint="max_norm"), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((6,)), *layers])


def step_of(model, optimizer, more=None):
    """A training step that returns its loss or, if `more` is given, the result of `more(gradients)`."""

    @tf.function
    def step(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(rows, training=True) - rows[:, :1]) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss if more is None else more(gradients)

    return step


def loops_of(step):
    """Two functions that make steps in a loop: over a dataset, and with its iterator."""

    @tf.function
    def over(data):
        for rows in data:
            step.python_function(rows)

    @tf.function
    def along(data):
        for _ in tf.range(2):
            if tf.reduce_any(x > 0):
                step.python_function(next(data))

    return over, along


def common_memory():
    """The bytes of memory that this process shares with other ranks."""
    with open("/proc/self/maps") as maps:
        ends = [line.split()[0].split("-") for line in maps if "memfd:matex_tf" in line]
    return sum(int(last, 16) - int(first, 16) for first, last in ends)


def train(name):
    """Train with the current strategy, and record the weights under `name`."""
    model, optimizer = network(), keras.optimizers.Adam(0.05, weight_decay=0.01)
    optimizer.exclude_from_weight_decay(var_names=["bias"])  # weight decay assigns a new value before each update
    step, asking = step_of(model, optimizer), step_of(model, optimizer, tf.linalg.global_norm)
    over, along = loops_of(step)
    kept, figures, weights = [], [], []
    for number in range(8):
        if number in (3, 4, 5):  # values in shared memory, and copies
            values = [one.value + 0 if number == 4 else one.value.read_value() for one in model.weights]
            kept.append((values, [np.array(value) for value in values]))
        if number == 6:
            model.set_weights([one * 0.5 for one in model.get_weights()])
        figures.append((asking if number in (2, 7) else step)(x))
        weights += [np.array(one).ravel() for one in model.get_weights()]
    data = tf.data.Dataset.from_tensor_slices(x).batch(12)
    for loop, given in ((over, data), (along, iter(data))):
        loop(given)
        weights += [np.array(one).ravel() for one in model.get_weights()]
    for values, before in kept:
        assert all(np.array_equal(value, as_it_was) for value, as_it_was in zip(values, before))
    found[name] = np.concatenate(weights)
    found[f"{name}, figures"] = np.array(figures)


def in_strategy(strategy):
    settings.get_settings().strategy = strategy  # as if the environment said so
    slots.start_pieces()


folder, *ways = sys.argv[1:]
in_strategy("allreduce")
train("allreduce")
in_strategy("sharded")
can_publish = publishing.can_publish
for way in ways:
    overlap, place = way.split(": ")
    settings.get_settings().overlap = overlap
    settings.get_settings().algorithm = "auto" if place == "in memory" else "mpi"
    publishing.can_publish = (lambda *given: False) if place == "of a device" else can_publish
    before = common_memory()
    train(way)
    assert (common_memory() > before) if place == "in memory" else (common_memory() == before)
np.savez(Path(folder) / f"rank-{matex_tf.rank()}.npz", **found)
