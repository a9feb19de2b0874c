"""Reads and writes the variables of optimizers in all ways, eager and in graphs; each must find complete values.

Arguments: the folder, and `usual` or `all`.
"""

import sys
import threading
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import matex_tf
from matex_tf import errors

folder = Path(sys.argv[1])
x = np.random.default_rng(0).normal(size=(36, 6)).astype("float32")
words = np.random.default_rng(1).integers(0, 9, size=(36, 3))
found = {}


def keep(name, variables):
    for index, variable in enumerate(variables):
        found[f"{name}|{index}"] = np.asarray(variable.numpy() if hasattr(variable, "numpy") else variable)


def network():
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])


def check_pieces(slot):
    """While a slot is in pieces: accesses that start no collective, and reads that raise an error."""
    if not hasattr(slot, "piece"):
        return
    refused = []

    def read():
        try:
            slot.numpy()
        except errors.UnsupportedError as error:
            refused.append(str(error))

    if matex_tf.rank() == 1:
        assert slot.handle is not None and "numpy" not in repr(slot) and slot.shape.rank == 2
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert len(refused) == 1 and "a thread of the script reads" in refused[0]
    try:
        tf.raw_ops.ReadVariableOp(resource=slot.handle, dtype=slot.dtype)
        raise AssertionError("what ranks have pieces of was read as if it were whole")
    except tf.errors.FailedPreconditionError as error:
        assert "of which ranks have pieces" in str(error)


class Reads(keras.callbacks.Callback):
    sums = []

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            self.sums += [float(tf.reduce_sum(one)) for one in self.model.optimizer.variables]


def in_fit():
    model = network()
    model.compile(keras.optimizers.Adam(0.05), "mse")
    saved = keras.callbacks.ModelCheckpoint(str(folder / "each.keras"))
    model.fit(x, x[:, :1], batch_size=9, epochs=2, verbose=0, callbacks=[Reads(), saved])
    keep("fit", [*model.weights, *model.optimizer.variables, np.array(Reads.sums)])
    again = keras.models.load_model(folder / "each.keras")
    keep("loaded", [*again.weights, *again.optimizer.variables])
    again.fit(x, x[:, :1], batch_size=9, verbose=0)
    keep("resumed", [*again.weights, *again.optimizer.variables])


def step_of(model, optimizer, loss_of, reads=False):
    @tf.function
    def step(rows):
        with tf.GradientTape() as tape:
            loss = loss_of(model(rows, training=True), rows)
        of = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, of), of))
        return tf.reduce_sum(optimizer.variables[2]) if reads else loss

    return step


def error(out, rows):
    return tf.reduce_mean((out - rows[:, :1]) ** 2)


def in_loops():
    model, optimizer = network(), keras.optimizers.Adam(0.05)
    step, reading = step_of(model, optimizer, error), step_of(model, optimizer, error, reads=True)
    looks = tf.function(lambda: tf.reduce_sum(optimizer.variables[3] ** 2))
    compiled = tf.function(lambda: tf.reduce_sum(optimizer.variables[4] ** 2), jit_compile=True)
    rows = [tf.constant(x[at : at + 9]) for at in range(0, 36, 9)]
    figures = []
    for number in range(2):
        for one in rows:
            step(one)
        check_pieces(optimizer.variables[2].value)
        figures += [reading(rows[number]), looks(), looks()]
        step(rows[0])
        figures += [compiled(), compiled()]
        step(rows[1])
        for slot in optimizer.variables[2:]:
            slot.assign(slot * 0.5)
    keep("loop", [*model.weights, *optimizer.variables])
    keep("figures", figures)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    path = checkpoint.save(str(folder / "checkpoint"))
    step(rows[2])
    keep("moved on", optimizer.variables)
    checkpoint.restore(path)
    step(rows[3])
    keep("restored", [*model.weights, *optimizer.variables])
    with tf.GradientTape() as tape:
        loss = error(model(rows[0]), rows[0])
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    step(rows[1])
    keep("eager between", [*model.weights, *optimizer.variables])


def of_tensorflow_1():
    """An optimizer of TensorFlow 1, whose variables are never in pieces."""
    kernel, optimizer = tf.Variable(tf.ones([6, 1])), tf.compat.v1.train.AdamOptimizer(0.05)

    @tf.function
    def step(rows):
        with tf.GradientTape() as tape:
            loss = error(rows @ kernel, rows)
        optimizer.apply_gradients([(tape.gradient(loss, kernel), kernel)])

    for at in range(0, 36, 9):
        step(tf.constant(x[at : at + 9]))
    keep("v1", [kernel, *optimizer.variables()])


def of_rows():
    keras.utils.set_random_seed(2)
    layers = [keras.layers.Embedding(9, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,), dtype="int64"), *layers])
    model.compile(keras.optimizers.Adam(0.05), "mse")
    model.fit(words, words[:, :1] % 2, batch_size=9, epochs=2, verbose=0)
    keep("sparse", [*model.weights, *model.optimizer.variables])


def of_few():
    scale, optimizer = keras.Variable(np.ones(2, "float32")), keras.optimizers.Adam(0.1)

    @tf.function
    def step(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((rows[:, :2] * scale) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, scale), scale)])

    for at in range(0, 36, 9):
        step(tf.constant(x[at : at + 9]))
    keep("few", [scale, *optimizer.variables])


class First(keras.layers.Layer):
    def call(self, rows):
        return tf.ensure_shape(rows[:, :5], (None, 5))

    def compute_output_shape(self, shape):
        return (shape[0], 5)


def of_any_width():
    """A step is traced for batches of any width, and used again for batches of width six."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((None,)), First(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse")
    batches = ((x[at : at + 9, : 6 - at // 9 % 2], x[at : at + 9, :1]) for at in range(0, 36, 9))
    model.fit(batches, steps_per_epoch=4, verbose=0)
    model.fit(x, x[:, :1], batch_size=9, verbose=0)
    keep("any width", [*model.weights, *model.optimizer.variables])


in_fit()
in_loops()
of_tensorflow_1()
of_rows()
if sys.argv[2] == "all":
    of_any_width()
    of_few()
np.savez(folder / f"rank-{matex_tf.rank()}.npz", **found)
