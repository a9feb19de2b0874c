"""Loses a rank in each call of `fit` with `async`, and stores the results of the others.

Arguments: the folder, and for each call of `fit` the loss as "rank:epoch:number:moment". `rank` is its number at the
start of the run; `number` is the number of batches of the epoch that it has trained before, or "all" at the end of the
epoch. If the loss precedes the update of a batch, the result is that of the script alone.

Ranks take the next batch as they get to it, so that the rank to be lost might train too few. The other ranks let it
have batches (`let_train`). After the first loss, the last rank sleeps for some seconds (`stand_still`), so that others
wait for it.
"""

import os
import posix  # the library does not redirect its functions to a folder of the rank
import signal
import sys
import time

import keras
import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.runtime import watchdog
from matex_tf.world import world

folder, losses = sys.argv[1], [one.split(":") for one in sys.argv[2:]]
me = str(world.get_world().rank)
ROWS, BATCH, EPOCHS = 52, 4, 3
at = {"epoch": -1, "batch": -1, "lost": None, "stands still": False}
x = np.random.default_rng(0).normal(size=(ROWS, 5))
x[:, 0] = np.arange(ROWS)
y = x[:, 1:2] * 2
keras.config.set_floatx("float64")


def place_of(loss):
    return f"{folder}/{'-'.join(loss or [])}"


def lose(moment):
    place = place_of(at["lost"])
    number = "all" if moment == "epoch" else str(at["batch"])
    if at["lost"] == [me, str(at["epoch"]), number, moment] and not os.path.exists(place):
        posix.close(posix.open(place, os.O_CREAT | os.O_WRONLY))
        os.kill(os.getpid(), signal.SIGKILL)


def stand_still():
    if at["stands still"] and os.path.exists(place_of(at["lost"])):
        at["stands still"] = False
        time.sleep(4)


def let_train():
    """After a batch in the epoch of the loss: leave a batch to the rank to be lost, and wait for 2 s at most.

    That rank may itself wait for this one, for example while ranks save their state together.
    """
    rank, epoch, number, _ = at["lost"] or (me, "", "", "")
    place = place_of(at["lost"])
    if rank == me or epoch != str(at["epoch"]) or number == "all":
        return
    seen, end = count_batches(place), time.monotonic() + 2
    while not os.path.exists(place) and count_batches(place) == seen and time.monotonic() < end:
        time.sleep(0.01)


def count_batches(place):
    """How many batches the rank to be lost has begun in all epochs."""
    try:
        return posix.stat(place + ".batches").st_size
    except FileNotFoundError:
        return 0


def watch(is_watched, last):
    """Start or stop the watchdog, which notices a loss while no rank calls MPI. With it, rank `last` stands still."""
    settings.get_settings().stall_seconds = int(is_watched)
    watchdog.start_watching() if is_watched else watchdog.stop_watching()
    at["stands still"] = is_watched and me == str(last)


class Losing(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        at["epoch"], at["batch"] = epoch, -1

    def on_train_batch_begin(self, batch, logs=None):
        at["batch"] += 1
        if at["lost"] is not None and at["lost"][0] == me:
            file = posix.open(place_of(at["lost"]) + ".batches", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            posix.write(file, b".")
            posix.close(file)
            time.sleep(0.02)  # longer than the time between two saves of the state
        stand_still()
        lose("begin")

    def on_train_batch_end(self, batch, logs=None):
        lose("end")
        let_train()

    def on_epoch_end(self, epoch, logs=None):
        lose("epoch")


def passing(value, moment):
    """`value`, once the moment is over."""

    def look(one):
        lose(moment)
        return one

    return tf.ensure_shape(tf.py_function(look, [value], value.dtype), value.shape)


class Seen(keras.layers.Layer):
    """Counts how often each row was trained, before anything else of its batch; its number is its first entry."""

    def build(self, shape):
        self.seen = self.add_weight(shape=(ROWS,), dtype="int64", initializer="zeros", trainable=False, name="seen")

    @tf.function
    def count(self, numbers):
        self.seen.assign_add(tf.reduce_sum(tf.one_hot(tf.cast(numbers, tf.int32), ROWS, dtype=tf.int64), 0))

    def call(self, x, training=False):
        if training:
            self.count(x[:, 0])
            with tf.control_dependencies([passing(x[:, 0], "seen")]):
                x = tf.identity(x)
        return x[:, 1:]


class Slow(keras.optimizers.SGD):
    """Its last weight is changed after the moment within the update."""

    def update_step(self, gradient, variable, learning_rate):
        if variable.shape == (1,):
            gradient = passing(gradient, "update")
        super().update_step(gradient, variable, learning_rate)


class Rows(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="rows")
        self.count = self.add_variable((), initializer="zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign_add(tf.cast(tf.shape(y_true)[0], self.count.dtype))

    def result(self):
        return self.count


def train(strategy, loss):
    settings.get_settings().strategy, at["lost"] = strategy, loss  # as if the environment said so
    keras.utils.set_random_seed(3)
    layers = [Seen(), keras.layers.Dense(64, "tanh"), keras.layers.BatchNormalization()]
    model = keras.Sequential([keras.Input((5,)), *layers, keras.layers.Dense(1, name="last")])
    model.compile(Slow(0.01, momentum=0.9), "mse", metrics=[Rows()])
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(ROWS, seed=2).batch(BATCH)
    history = model.fit(data, epochs=EPOCHS, verbose=0, validation_data=(x, y), callbacks=[Losing()])
    name = strategy if loss is None else "-".join(loss)
    values = {str(number): np.asarray(one) for number, one in enumerate((*model.weights, *model.optimizer.variables))}
    found.update({f"{name}|{key}": value for key, value in {**values, **history.history}.items()})


class Stopping(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = batch >= 3


def make_small():
    model = keras.Sequential([keras.layers.Dense(1)], name="small")  # whose variables the first trace makes
    model.compile("sgd", "mse")
    return model


def end_early():
    """Data of one batch, data that end within an epoch, and a callback that stops; nobody is lost."""
    settings.get_settings().strategy = "async"
    model = make_small()
    model.fit(x[:BATCH], y[:BATCH], BATCH, verbose=0)
    batches = ((x[at : at + BATCH], y[at : at + BATCH]) for at in range(0, ROWS, BATCH))
    model.fit(batches, epochs=2, steps_per_epoch=9, verbose=0)
    found["ended"] = np.asarray(model.optimizer.iterations)
    model = make_small()
    model.fit(x, y, BATCH, epochs=2, verbose=0, callbacks=[Stopping()])
    found["stopped"] = np.asarray(model.optimizer.iterations)


found = {}
end_early()
train("allreduce", None)
for loss in losses:
    if settings.get_settings().elastic:
        watch(loss is losses[0], max({0, 1, 2} - {int(loss[0])}))
    train("async" if loss[3] == "update" else "async:0", loss)
np.savez(f"{folder}/rank-{me}.npz", **found)
