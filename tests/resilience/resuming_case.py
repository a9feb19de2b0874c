"""Three models in four calls of `fit`, one of them killed or asked to end, as the environment says; the rest is plain.

    resuming_case.py FOLDER [first] [second] [third] [fourth]

Without names it makes all calls, and then trains once more. LOSE is a list of "call:epoch:batch:rank:signal", of which
the first call is 0; FOLDER notes what has happened. What it prints is all that a script can see of its training.
"""

import json
import os
import posix  # the ranks' own view of files leaves it alone
import signal
import sys

import numpy as np
import tensorflow as tf

from matex_tf.world import world  # `matex_tf.rank` is for scripts that do different things on different ranks

keras = tf.keras
folder, *chosen = sys.argv[1:]
keras.backend.set_floatx("float64")
keras.utils.set_random_seed(4)
rng = np.random.default_rng(1)
x = rng.random((50, 6))
y = x @ rng.random((6, 1)) + 0.1 * rng.random((50, 1))
is_keras3 = hasattr(keras, "ops")


class Lose(keras.callbacks.Callback):
    """Ends its rank, or asks it to end, at the moments asked for, each once; and counts what it sees."""

    def __init__(self, call):
        super().__init__()
        self.call = call
        self.at = 0
        self.batches = 0
        self.seen = []

    def on_epoch_begin(self, epoch, logs=None):
        self.at = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        rank = world.get_world().rank if "matex_tf" in sys.modules else 0
        for name in os.environ.get("LOSE", "").split():
            *moment, how = name.split(":")
            if [self.call, self.at, batch, rank] == list(map(int, moment)) and name not in posix.listdir(folder):
                posix.close(posix.open(os.path.join(folder, name), os.O_CREAT | os.O_WRONLY))
                os.kill(os.getpid(), getattr(signal, how))

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(round(float(logs["loss"]), 6))


def network():
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    if is_keras3:
        return keras.Sequential([keras.layers.Input((6,)), *layers])
    return keras.Sequential(layers)  # built, and its optimizer with it, by the first step


def show(name, history, model, *callbacks):
    weights = [float(np.sum(np.abs(weight))) for weight in model.get_weights()]
    found = {
        "history": history.history,
        "epochs": history.epoch,
        "weights": weights,
        "evaluated": model.evaluate(x, y, verbose=0),
        "batches": [callback.batches for callback in callbacks],
        "seen": [callback.seen for callback in callbacks],
        "drawn": float(np.random.random())
        if name in ("first", "second", "fourth")
        else 0.0,  # of a generator that is drawn from ahead
        "rate": float(keras.backend.get_value(model.optimizer.learning_rate))
        if not is_keras3
        else float(model.optimizer.learning_rate),
    }
    print("SHOW" + json.dumps([name, found]), flush=True)


second = network()
second.compile(keras.optimizers.SGD(0.03, momentum=0.9), "mse", metrics=["mae"])


def fit_first():
    """It stops early; its end is asked for afterwards."""
    first = network()
    first.compile(keras.optimizers.Adam(0.03), "mse", metrics=["mae"])
    stop, lose = keras.callbacks.EarlyStopping("loss", min_delta=10.0, patience=2), Lose(0)
    history = first.fit(x, y, batch_size=8, epochs=9, verbose=0, callbacks=[stop, lose])
    show("first", history, first, lose)
    print("SHOW" + json.dumps(["stopped", stop.stopped_epoch]))


def fit_second():
    """Its data are shuffled anew in each epoch, of a length that nobody knows; its callbacks have a memory.

    Nothing is drawn at random in its steps.
    """
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50).filter(lambda *row: True)
    data = data.map(lambda row, target: (row * 2.0, target)).batch(8)  # of which a rank makes its rows
    lose = Lose(1)
    callbacks = [
        keras.callbacks.ReduceLROnPlateau("loss", min_delta=0.005, patience=1),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.95),
        keras.callbacks.CSVLogger(os.path.join(folder, "log.csv")),
        lose,
    ]
    if is_keras3:  # the script's own backup may have Keras begin at another epoch
        callbacks.append(keras.callbacks.BackupAndRestore(folder + "-backup"))
    history = second.fit(data, epochs=5, validation_data=(x, y), verbose=0, callbacks=callbacks)
    show("second", history, second, lose)


def append_log():
    return keras.callbacks.CSVLogger(os.path.join(folder, "log.csv"), append=True)


def show_log():
    with open(os.path.join(folder, "log.csv")) as file:
        print("SHOW" + json.dumps(["log", [line.split(",") for line in file.read().splitlines()]]))


def fit_third():
    """It goes on with the second's model, from a generator that draws as it goes."""

    def batches():
        while True:
            rows = np.random.permutation(50)[:10]
            yield x[rows], y[rows]

    lose = Lose(2)
    history = second.fit(batches(), steps_per_epoch=6, epochs=3, verbose=0, callbacks=[append_log(), lose])
    show("third", history, second, lose)


class Pair(keras.Model):
    def __init__(self):
        super().__init__()
        self.below, self.above = keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)
        self.other, self.mean = keras.optimizers.Adam(0.02), keras.metrics.Mean("loss")

    @property
    def metrics(self):
        return [self.mean]

    def call(self, x):
        return self.above(self.below(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        both = [*self.below.trainable_variables, *self.above.trainable_variables]
        gradients = tape.gradient(loss, both)
        self.optimizer.apply_gradients(zip(gradients[:2], both[:2]))
        self.other.apply_gradients(zip(gradients[2:], both[2:]))
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}

    def test_step(self, data):
        x, y = data
        self.mean.update_state(tf.reduce_mean((self(x) - y) ** 2))
        return {"loss": self.mean.result()}


class Train(keras.callbacks.Callback):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def on_epoch_begin(self, epoch, logs=None):
        np.random.random()

    def on_epoch_end(self, epoch, logs=None):
        self.inner.fit(x[:16], y[:16], batch_size=8, epochs=2, verbose=0)


def fit_fourth():
    """It makes variables of an optimizer in its first step, of several batches; a callback draws and trains meanwhile.

    Its generator draws nothing.
    """

    def slices():
        while True:
            for start in range(0, 48, 8):
                yield x[start : start + 8], y[start : start + 8]

    np.random.seed(9)
    pair, inner = Pair(), keras.Sequential([keras.layers.Dense(1)])
    pair.compile(keras.optimizers.Adam(0.02), steps_per_execution=2)
    inner.compile("sgd", "mse")
    lose = Lose(3)
    paired = pair.fit(slices(), steps_per_epoch=7, epochs=3, verbose=0, callbacks=[Train(inner), append_log(), lose])
    show("fourth", paired, pair, lose)
    show_log()


calls = {"first": fit_first, "second": fit_second, "third": fit_third, "fourth": fit_fourth}
for name in chosen or calls:
    calls[name]()
if not chosen:
    # Not by fit: it is done again.
    second.train_on_batch(x[:12], y[:12])
    print("SHOW" + json.dumps(["last", [float(np.sum(np.abs(weight))) for weight in second.get_weights()]]))
    show_log()
