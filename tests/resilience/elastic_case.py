"""`python elastic_case.py FOLDER CASE...` trains with more behind it than weights; its output is what scripts can see.

KILL, a list of "case:step:rank", ends ranks within the cases. FOLDER notes who was killed.
"""

import json
import os
import posix  # the ranks' own view of files leaves it alone
import signal
import sys
from types import SimpleNamespace

import keras
import numpy as np
import tensorflow as tf

from matex_tf.world import world  # `matex_tf.rank` is for scripts that do different things on different ranks

keras.utils.set_random_seed(5)
keras.backend.set_floatx("float64")
rng = np.random.default_rng(0)
x = rng.normal(size=(96, 6))
y = (x @ rng.normal(size=(6, 1)) > 0).astype("float64")
words = rng.integers(0, 50, size=(96, 3))


class Kill(keras.callbacks.Callback):
    """Kills its rank before the steps asked for, counted over all epochs, each once."""

    def __init__(self, case):
        super().__init__()
        self.case = case
        self.steps = 0

    def on_train_batch_begin(self, batch, logs=None):
        self.steps += 1
        rank = world.get_world().rank if "matex_tf" in sys.modules else None
        for name in os.environ.get("KILL", "").split():
            case, step, victim = name.split(":")
            mine = (case, int(step), int(victim)) == (self.case, self.steps, rank)
            if mine and name not in posix.listdir(sys.argv[1]):
                posix.close(posix.open(os.path.join(sys.argv[1], name), os.O_CREAT | os.O_WRONLY))
                os.kill(os.getpid(), signal.SIGKILL)


def network():
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((6,)), *layers])


def show(name, model, history, *more):
    weights = float(sum(np.abs(weight).sum() for weight in model.get_weights()))
    print("SHOW" + json.dumps([name, [history.history, weights, *more]]), flush=True)


def double(row, target):
    """Work of which a rank does that of its rows."""
    return row * 2.0, target


def accumulated(kill):
    """Gradients that are added up over three steps, and averages of weights."""
    model = network()
    model.compile(keras.optimizers.Adam(0.02, gradient_accumulation_steps=3, use_ema=True), "mse", metrics=["mae"])
    return model, model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[kill])


def several(kill):
    """Several steps in one call, and a metric of many numbers."""
    model = network()
    model.compile("adam", "mse", steps_per_execution=4, metrics=[keras.metrics.AUC()])
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).map(double).batch(16)
    return model, model.fit(data, epochs=3, verbose=0, callbacks=[kill])


def unknown(kill):
    """Data of unknown length, to validate with as well."""
    data = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda a, b: a[0] > -1).map(double).batch(16)
    model = network()
    model.compile("adam", "mse")
    return model, model.fit(data, epochs=3, verbose=0, callbacks=[kill], validation_data=data)


def sparse(kill):
    """Sparse gradients."""
    words_to_vectors = [keras.layers.Embedding(50, 4), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input((3,), dtype="int32"), *words_to_vectors, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model, model.fit(words, y, batch_size=16, epochs=2, verbose=0, callbacks=[kill])


class Own(keras.Model):
    """A step, a metric, an optimizer and a variable of its own."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.tracker = keras.metrics.Mean(name="loss")
        self.optimizers = [keras.optimizers.Adam(0.05)]
        self.average = tf.Variable(tf.zeros([6, 1], tf.float64), trainable=False)

    def call(self, inputs):
        return self.dense(inputs)

    @property
    def metrics(self):
        return [self.tracker]

    @tf.function
    def train_step(self, batch):
        inputs, targets = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(inputs) - targets) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizers[0].apply_gradients(zip(gradients, self.trainable_variables))
        self.average.assign(0.9 * self.average + 0.1 * self.dense.kernel)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def own(kill):
    model = Own()
    model.build((None, 6))
    model.compile()
    history = model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[kill])
    answers = model.predict(x, verbose=0)
    return model, history, float(np.abs(model.average.numpy()).sum()), float(np.abs(answers).sum())


def loop(kill):
    """A step of one's own that counts and draws, alone and within a loop; ranks end as they take a batch."""
    model, optimizer = network(), keras.optimizers.SGD(0.05)
    count, draws = tf.Variable(0.0), tf.random.Generator.from_seed(3)
    model(x[:1]), optimizer.build(model.trainable_variables)

    @tf.function
    def step(inputs, targets):
        count.assign_add(1.0)
        noise = draws.normal(tf.shape(inputs), dtype=inputs.dtype)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs + 0.1 * noise, training=True) - targets) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def train_thrice(batches):
        total = tf.constant(0.0, tf.float64)
        for _ in tf.range(3):
            with tf.control_dependencies([total]):  # the turn before has changed variables by then
                inputs, targets = next(batches)
            total += step(inputs, targets)
        return total

    def take(inputs, targets):
        kill.on_train_batch_begin(0)
        return inputs, targets

    def watch(*batch):
        return [
            tf.ensure_shape(one, [16, width])
            for one, width in zip(tf.py_function(take, batch, ["float64"] * 2), (6, 1))
        ]

    data, losses = tf.data.Dataset.from_tensor_slices((x, y)).batch(16, drop_remainder=True), []
    for epoch in range(2):
        batches = iter(data.shuffle(6, seed=epoch).map(watch))
        losses += [float(train_thrice(batches)) for _ in range(2)]
        losses += [float(step(*batch)) for batch in data.map(watch)]
    return model, SimpleNamespace(history=losses), float(count), draws.state.numpy().tolist()


CASES = {case.__name__: case for case in (accumulated, several, unknown, sparse, own, loop)}
for name in sys.argv[2:]:
    show(name, *CASES[name](Kill(name)))
