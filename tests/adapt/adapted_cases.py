"""Trains small models in float64 while the slices of the ranks change: `python adapted_cases.py FOLDER NAME...`.

It writes FOLDER/rank-R.npz with, for each case, the figures that a person sees, the weights, and how many rows each
step computed here. Those `FORCED` change shares every two steps, without looking at the time; those by the `CLOCK`
measure by one that only work on rows moves on.
"""

import itertools
import os
import sys
import time
from types import SimpleNamespace

import keras
import numpy as np
import tensorflow as tf

import matex_tf
from matex_tf import ops as matex_ops
from matex_tf.adapt import slice_adapter
from matex_tf.steps import events, slices
from matex_tf.world import world

FOLDER, NAMES = sys.argv[1], sys.argv[2:]
BATCH = 16
ROWS = 5 * BATCH + 1
"""The last batch has fewer rows than there are ranks."""
SHARES = [(5, 1, 1), (1, 9, 0), (0, 1, 15), (1, 1, 1), (2, 3, 4)]
rank, size = matex_tf.rank(), matex_tf.size()
slowness = [1.0] * size
now = 0.0


rows = []
"""Those that each step that trains computed here."""


def note_rows():
    """Note how many rows this rank has of each batch that trains, which takes its time."""
    trains = []
    events.step_begins.add_listener(lambda plan: trains.append(bool(plan.trained)))

    def work(count):
        global now
        if trains[-1]:
            rows.append(int(count))
            now += int(count) * slowness[rank]
        return count

    depth = [0]  # of the functions below that run: one calls another

    def note(name, is_noted=True):
        make = getattr(slices, name)

        def make_noted(*given):
            depth[0] += 1
            try:
                share = make(*given)
            finally:
                depth[0] -= 1
            if depth[0] or not is_noted:
                return share
            return share._replace(count=tf.ensure_shape(tf.numpy_function(work, [share.count], tf.int64), []))

        setattr(slices, name, make_noted)

    note("make_slice_of_rows")
    note("make_given_slice")
    note("make_empty_slice", is_noted=False)


def data(rows=ROWS):
    chance = np.random.RandomState(7)
    return chance.rand(rows, 6), chance.randint(0, 3, rows), chance.rand(rows)


def source():
    x, y, weights = data()
    return tf.data.Dataset.from_tensor_slices((x, y, weights))


def crossed(y, outputs):
    """A number for each row, by which it is told from all others."""
    outputs = tf.math.l2_normalize(outputs, -1)
    same = tf.cast(tf.reshape(y, [-1, 1]) == tf.reshape(y, [1, -1]), outputs.dtype)
    return keras.losses.binary_crossentropy(same, outputs @ tf.transpose(outputs), from_logits=True)


def made(normalises=False, loss=None, accumulates=None, **how):
    keras.backend.set_floatx("float64")
    keras.utils.set_random_seed(11)
    layers = [keras.layers.Dense(8, activation="tanh")]
    if normalises:
        layers += [keras.layers.BatchNormalization(momentum=0.9), keras.layers.Activation("tanh")]
    model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(3)])
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    steps = {"gradient_accumulation_steps": accumulates} if accumulates else {}
    optimizer = keras.optimizers.Adam(0.01, global_clipnorm=0.5, **steps)
    model.compile(
        optimizer, loss, metrics=["accuracy"], weighted_metrics=[keras.metrics.SparseCategoricalAccuracy()], **how
    )
    return model


def trained(model, *args, **kwargs):
    history = model.fit(*args, verbose=0, **kwargs).history
    return [history[name] for name in sorted(history)], model.get_weights()


class Looks(keras.callbacks.Callback):
    """Evaluates in the middle of an epoch."""

    def __init__(self, dataset):
        super().__init__()
        self.dataset, self.seen = dataset, []

    def on_train_batch_end(self, batch, logs=None):
        if batch == 3:
            self.seen.append(self.model.evaluate(self.dataset, verbose=0))


def arrays():
    """Shuffled, weighted, validated and evaluated, with BatchNormalization."""
    x, y, weights = data()
    model = made(normalises=True)
    looks = Looks(source().batch(9))
    seen, kept = trained(
        model, x, y, batch_size=BATCH, epochs=4, sample_weight=weights, validation_data=(x[:9], y[:9]),
        callbacks=[looks],
    )  # fmt: skip
    return [*seen, looks.seen, model.evaluate(x, y, batch_size=10, verbose=0)], kept


def repeated():
    """Cached, shuffled anew, without an end, read far ahead, in epochs of a given length, two steps in a call."""
    dataset = source().cache().shuffle(ROWS, seed=5).batch(BATCH, drop_remainder=True).repeat().prefetch(3)
    validation = {"validation_data": source().batch(8).repeat(), "validation_steps": 3}
    return trained(made(steps_per_execution=2), dataset, epochs=3, steps_per_epoch=8, **validation)


def mapped():
    """Rows are chosen before work is done on them."""
    dataset = source().map(lambda x, y, weight: (2 * x, y, weight), num_parallel_calls=2).batch(BATCH).repeat(2)
    return trained(made(), dataset, epochs=3)


def met():
    """Rows meet in the loss of `fit`."""
    return trained(made(normalises=True, loss=crossed), *data()[:2], batch_size=BATCH, epochs=4)


def loop_met():
    """Rows meet in a step that is a tf.function."""
    return loop(loss_of=lambda y, outputs: tf.reduce_mean(crossed(y, outputs)) + dice(y, outputs))


def dice(y, outputs):
    chosen, mine = tf.one_hot(y, 3, dtype=outputs.dtype), tf.nn.softmax(outputs)
    return tf.reduce_mean(-2 * tf.reduce_sum(chosen * mine, 0) / (tf.reduce_sum(chosen + mine, 0) + 1))


def loop(epochs=3, loss_of=None):
    """A loop of the script's own, whose step is a tf.function."""
    model = made(normalises=True)
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    loss_of = loss_of or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy, average = keras.metrics.SparseCategoricalAccuracy(), keras.metrics.Mean()

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            loss = loss_of(y, outputs)
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients, norm = tf.clip_by_global_norm(gradients, 0.5)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        accuracy.update_state(y, outputs)
        average.update_state(loss)
        return loss, norm

    seen = []
    for _ in range(epochs):
        for x, y, _ in source().shuffle(ROWS, seed=5).batch(BATCH).prefetch(2):
            seen.append([float(part) for part in step(x, y)])
        seen.append([float(accuracy.result()), float(average.result())])
    return [seen], model.get_weights()


def inner_loop():
    """A loop over the batches within a tf.function."""
    model, optimizer = made(), keras.optimizers.SGD(0.05)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train(batches):
        total = tf.constant(0.0, tf.float64)
        for x, y, _ in batches:
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            total += loss
        return total

    return [[float(train(source().batch(BATCH))) for _ in range(8)]], model.get_weights()


def accumulated():
    """The gradients of two batches make an update, of slices that were cut otherwise."""
    return trained(made(accumulates=2), *data()[:2], batch_size=BATCH, epochs=4)


def single_batches():
    """`train_on_batch` of Keras 3."""
    x, y, weights = data()
    model, seen = made(normalises=True), []
    for first in range(0, 4 * ROWS, BATCH):
        part = np.arange(first, first + BATCH) % ROWS
        seen.append(model.train_on_batch(x[part], y[part], sample_weight=weights[part]))
    return [seen], model.get_weights()


def compiled():
    """XLA compiles each number of rows anew."""
    return trained(made(jit_compile=True), *data(5 * BATCH)[:2], batch_size=BATCH, epochs=4)


class Slows(keras.callbacks.Callback):
    """The last rank is slow in epochs 4 to 8 of 14."""

    def on_epoch_begin(self, epoch, logs=None):
        slowness[-1] = 3.0 if 3 <= epoch < 8 else 1.0


def gone():
    """A rank is slow for a while."""
    return trained(made(), *data(320)[:2], batch_size=BATCH, epochs=14, callbacks=[Slows()])


def slow_loop():
    """The last rank takes longer for a row."""
    slowness[-1] = 4.0
    return loop(epochs=8)


FORCED = [arrays, repeated, mapped, loop, inner_loop, met, loop_met, accumulated, single_batches, compiled]
CLOCK = [gone, slow_loop]


def main():
    note_rows()
    found = {}
    for name in NAMES:
        case = globals()[name]
        follows = itertools.cycle(ratios[: world.get_world().trainers] for ratios in SHARES)
        slice_adapter.override_choice(
            (lambda *_, of=follows: next(of)) if case in FORCED else None, steps=2 * (case in FORCED)
        )
        slice_adapter.time = SimpleNamespace(perf_counter=lambda: now) if case in CLOCK else time
        slice_adapter.ops = SimpleNamespace(get_blocked_seconds=lambda: 0.0) if case in CLOCK else matex_ops
        slowness[:] = [1.0] * size
        rows.clear()
        seen, weights = case()
        for number, figures in enumerate(seen):
            found[f"{name}|seen {number}"] = np.array(figures, float)
        for number, weight in enumerate(weights):
            found[f"{name}|weight {number}"] = weight
        found[f"{name}|rows"] = np.array(rows)
    np.savez(os.path.join(FOLDER, f"rank-{rank}.npz"), **found)


main()
