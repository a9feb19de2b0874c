"""Trains models by `fit`, on ranks that take turns or alone, and stores their variables and metrics.

Arguments: the folder, and "one at a time" (a batch begins after the previous one has ended, so the result is that of
the script alone) or "free".
"""

import os
import signal
import sys
import threading
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import matex_tf

folder, how = Path(sys.argv[1]), sys.argv[2]
ROWS, BATCH = 60, 4
generator = np.random.default_rng(0)
found = {}


def keep(name, model, history=None):
    values = [one.numpy() for one in (*model.weights, *model.optimizer.variables)]
    found.update({f"{name}|{index}": np.asarray(value) for index, value in enumerate(values)})
    for key, value in (history.history if history is not None else {}).items():
        found[f"{name}|{key}"] = np.asarray(value)


class Seen(keras.layers.Layer):
    """Counts how often each row was trained. The first entry of a row is its number."""

    def build(self, shape):
        self.seen = self.add_weight(shape=(ROWS,), dtype="int64", initializer="zeros", trainable=False, name="seen")

    def call(self, x, training=False):
        if training:
            rows = tf.one_hot(tf.cast(x[:, 0], tf.int32), ROWS, dtype=tf.int64)
            self.seen.assign_add(tf.reduce_sum(rows, 0))
        return x[:, 1:]


def counting():
    keras.utils.set_random_seed(1)
    layers = [Seen(name="seen"), keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.1), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((5,)), *layers])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


class Stops(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = batch == 6


def one_at_a_time():
    keras.config.set_floatx("float64")
    words, x = generator.integers(0, 30, size=(26, 5)), generator.normal(size=(26, 1))
    of = keras.optimizers
    made = {
        "SGD": of.SGD(of.schedules.ExponentialDecay(0.1, 3, 0.5), momentum=0.9, nesterov=True, weight_decay=0.01),
        "Adam": of.Adam(0.01, amsgrad=True, global_clipnorm=0.1, use_ema=True),
    }
    for name, optimizer in made.items():
        keras.utils.set_random_seed(3)
        layers = [
            keras.layers.Embedding(30, 4),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(3, "tanh", kernel_constraint="max_norm", kernel_regularizer="l2"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.GaussianNoise(0.1),
            keras.layers.Dense(1),
        ]
        model = keras.Sequential([keras.Input((5,), dtype="int32"), *layers], name=name)
        model.compile(optimizer, "mse", metrics=["mae"])
        more = {"validation_data": (words[:7], x[:7])} if name == "Adam" else {}
        keep(name, model, model.fit(words, x, BATCH, epochs=2, verbose=0, **more))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)], name="scales")
    model.compile(of.LossScaleOptimizer(of.SGD(0.1)), "mse")
    keep("scales", model, model.fit(x, x, BATCH, verbose=0))
    data = tf.data.Dataset.from_tensor_slices(
        (tf.RaggedTensor.from_row_lengths(words.ravel()[:120], range(16)), x[:16])
    )
    model = Numbered([keras.Input((1,)), keras.layers.Dense(1)], name="numbered")
    model.compile(of.SGD(0.01))
    keep("numbered", model, model.fit(data.batch(BATCH).enumerate(), verbose=0))


class Numbered(keras.Sequential):
    """Its batches begin with a number, and have rows of different lengths."""

    def train_step(self, data):
        number, (x, y) = data
        with tf.GradientTape() as tape:
            x = tf.reduce_sum(tf.cast(x, tf.float64), 1, keepdims=True) / 100
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2) * tf.cast(number + 1, tf.float64)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


class OfItsOwn(keras.Model):
    """Its logs are not metrics, and its optimizer creates its variables in the first step."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            error = tf.reduce_mean((self(x, training=True) - y) ** 2)
        self.optimizer.apply(tape.gradient(error, self.trainable_variables), self.trainable_variables)
        return {"error": error}


class Slower(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.1 / (1 + batch)


def of_its_own(x, y):
    """A pipeline that ends in the middle of an epoch, and a learning rate for each batch."""
    inputs = keras.Input((5,))
    model = OfItsOwn(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd")
    batches = ((x[at : at + BATCH], y[at : at + BATCH]) for at in range(0, ROWS, BATCH))
    plateau = keras.callbacks.ReduceLROnPlateau("error", mode="min", patience=0, min_delta=1)
    keep("own", model, model.fit(batches, epochs=2, steps_per_epoch=9, verbose=0, callbacks=[Slower(), plateau]))


class First(keras.layers.Layer):
    def call(self, x):
        return tf.ensure_shape(x[:, :4], (None, 4))

    def compute_output_shape(self, shape):
        return (shape[0], 4)


def of_any_width(x, y):
    """A step is traced for batches of any width, and used again for batches of width five."""
    model = keras.Sequential([keras.Input((None,)), First(), keras.layers.Dense(1)], name="any_width")
    model.compile("sgd", "mse")
    batches = ((x[at : at + BATCH, : 5 - at // BATCH % 2], y[at : at + BATCH]) for at in range(0, ROWS, BATCH))
    model.fit(batches, steps_per_epoch=9, verbose=0)
    model.fit(x, y, BATCH, verbose=0)


class Remembers(keras.layers.Layer):
    def build(self, shape):
        self.last = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="last")

    def call(self, x, training=False):
        if training:
            self.last.assign(tf.reduce_mean(x, 0))
        return x


def refused(x, y):
    model = keras.Sequential([keras.Input((5,)), Remembers(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x[:12], y[:12], BATCH, verbose=0)


class Killed(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if matex_tf.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def probe(x, y):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)], name="probe")
    model.compile("sgd", "mse")
    model.fit(x, y, BATCH, verbose=0)


def free():
    x = generator.normal(size=(ROWS, 5)).astype("float32")
    x[:, 0] = np.arange(ROWS)
    y = x[:, 1:2] * 2
    model, saved = counting(), folder / f"each-{matex_tf.rank()}.keras"
    callbacks = [
        keras.callbacks.EarlyStopping("val_loss", patience=9, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(str(saved)),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epoch or probe(x, y)),
    ]
    history = model.fit(x, y, BATCH, 3, verbose=0, validation_data=(x, y), callbacks=callbacks)
    keep("arrays", model, history)
    again = keras.models.load_model(str(saved), custom_objects={"Seen": Seen})
    found["saved"] = np.asarray(again.evaluate(x, y, verbose=0)[0])
    keep("again", model, model.fit(x, y, BATCH, 2, verbose=0, callbacks=[InThread(x, y)]))
    rows = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(ROWS, seed=2).batch(BATCH)
    model = counting()
    keep("steps", model, model.fit(rows.repeat(), epochs=6, steps_per_epoch=10, verbose=0))
    keep("stopped", model, model.fit(rows, epochs=3, verbose=0, callbacks=[Stops()]))
    try:
        model.fit(rows, epochs=1, verbose=0, callbacks=[Fails()])
    except ValueError:
        keep("caught", model, model.fit(rows, epochs=1, verbose=0))
    try:
        model.fit(rows, epochs=1, verbose=0, callbacks=[Evaluates(x, y)])
    except RuntimeError as error:
        found["refused"] = np.asarray("evaluate was called within an epoch" in str(error))
    model.train_on_batch(x, y)
    of_its_own(x, y)
    of_any_width(x, y)
    refused(x, y)
    store()
    model.fit(rows, verbose=0, callbacks=[Killed()])


class InThread(keras.callbacks.Callback):
    """Another call of fit, in a thread, until training ends."""

    def __init__(self, x, y):
        super().__init__()
        self.begun, self.ended = threading.Event(), threading.Event()
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        wait = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: self.begun.set() or self.ended.wait())
        self.thread = threading.Thread(target=lambda: model.fit(x, y, verbose=0, callbacks=[wait]))

    def on_train_begin(self, logs=None):
        self.thread.start()
        self.begun.wait()

    def on_train_end(self, logs=None):
        self.ended.set()
        self.thread.join()


class Fails(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch >= 6:
            raise ValueError("of the script")


class Evaluates(keras.callbacks.Callback):
    def __init__(self, *data):
        super().__init__()
        self.data = data

    def on_train_batch_end(self, batch, logs=None):
        self.model.evaluate(*self.data, verbose=0)


def store():
    np.savez(folder / f"rank-{matex_tf.rank()}.npz", **found)
    matex_tf.barrier()


if how == "one at a time":
    one_at_a_time()
    store()
else:
    free()
