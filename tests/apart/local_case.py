"""Trains models by `fit` with `local:H`, and stores the weights. Argument: the folder.

The expected weights are computed by NumPy (`expected`).
"""

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import matex_tf
from matex_tf import settings
from matex_tf.runtime import objects

folder, RANKS, RATE, MOMENTUM = Path(sys.argv[1]), matex_tf.size(), 0.0625, 0.875
generator = np.random.default_rng(0)
X = generator.normal(size=(26, 4))
Y = X @ generator.normal(size=(4, 1)) + 0.1 * generator.normal(size=(26, 1))
words = generator.integers(0, 30, size=(26, 4))
found = {}
keras.config.set_floatx("float64")


def set_period(steps):
    settings.get_settings().strategy = f"local:{steps}"  # as if the environment said so


def keep(name, variables):
    found.update({f"{name}|{index}": np.asarray(one) for index, one in enumerate(variables)})


def linear(name, optimizer=None, **more):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)], name=name)
    model.compile(optimizer or keras.optimizers.SGD(RATE, MOMENTUM), "mse", **more)
    return model


def expected(start, batch, period, epochs, whole=False):
    """The weights of each rank after each step; with `whole`, of one rank that trains whole batches."""
    ranks = 1 if whole else RANKS
    weights, moments, steps = [start] * ranks, [np.zeros_like(start)] * ranks, []
    for _ in range(epochs):
        for number, first in enumerate(range(0, len(X), batch)):
            x, y = X[first : first + batch], Y[first : first + batch]
            for rank in range(ranks):
                rows = slice(rank * len(x) // ranks, (rank + 1) * len(x) // ranks)
                error = x[rows] @ weights[rank] - y[rows]
                gradient = ranks * 2 * x[rows].T @ error / len(x)
                moments[rank] = MOMENTUM * moments[rank] - RATE * gradient
                weights[rank] = weights[rank] + moments[rank]
            is_last = first + batch >= len(X)
            if (number + 1) % period == 0 or is_last:
                weights = [sum(weights) / ranks] * ranks
                moments = [sum(moments) / ranks] * ranks if is_last else moments
            steps.append(list(weights))
    return steps


class Each(keras.callbacks.Callback):
    """Records the weights after each step; after the last step of an epoch, those at the end of the epoch."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(self.kernel())

    def on_epoch_end(self, epoch, logs=None):
        self.seen[-1] = self.kernel()

    def kernel(self):
        return self.model.kernel_of().numpy() if isinstance(self.model, Custom) else self.model.get_weights()[0]


@tf.function
def summed(x, model):
    return tf.reduce_sum(model(x) ** 2)


class Looks(keras.callbacks.Callback):
    """Within an epoch, where weights differ between ranks: evaluates, saves, and calls a function of the script."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            keep("shared", [summed(tf.constant(X), self.model), summed(X, self.model).numpy()])
            keep("shared expected", [np.sum((X @ self.model.get_weights()[0]) ** 2)] * 2)
        if batch == 0:
            own = self.model.get_weights()[0]
            loss = self.model.evaluate(X, Y, verbose=0)
            keep("met", [loss, self.model.get_weights()[0]])
            found["apart"] = own
        if batch == 1:
            self.model.save(folder / "saved.keras")
            keep("saving", [*self.model.get_weights(), *self.model.optimizer.variables])


def by_numpy():
    for name, batch, period in (("three", 6, 3), ("one", 5, 1)):
        set_period(period)
        model, each = linear(name), Each()
        start = model.get_weights()[0]
        for _ in range(2):
            model.fit(X, Y, batch, verbose=0, shuffle=False, callbacks=[each])
        keep(name, each.seen)
        steps = expected(start, batch, period, 2, whole=period == 1)
        keep(f"{name} expected", [step[matex_tf.rank() % len(step)] for step in steps])


def figures():
    """With constant weights, the metrics of an epoch are those of all rows, for any division of the rows."""
    set_period(3)
    seen = []

    class Told(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append([logs[name] for name in ("loss", "mae", "auc", "val_loss")])

    def batches():
        for first in range(0, len(X), 5):
            yield X[first : first + 5], labels[first : first + 5]

    labels = (Y > 0).astype("float64")
    model = linear("figures", keras.optimizers.SGD(0.0), metrics=["mae", keras.metrics.AUC(name="auc")])
    spec = (tf.TensorSpec([None, 4], tf.float64), tf.TensorSpec([None, 1], tf.float64))
    data = tf.data.Dataset.from_generator(batches, output_signature=spec)
    for given in ((X, labels, 5), (data,)):
        history = model.fit(*given, verbose=0, validation_data=(X[:9], labels[:9]), callbacks=[Told()]).history
        seen.append([history[name][0] for name in ("loss", "mae", "auc", "val_loss")])
    # Another model is trained between two epochs; then the step of this one needs the rows of all ranks.
    inner = linear("inner")
    between = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: inner.fit(X, Y, 26, verbose=0))
    model.fit(X, labels, 5, epochs=2, verbose=0, validation_data=(X[:9], labels[:9]), callbacks=[between, Told()])
    metrics = ["mae", keras.metrics.AUC(name="auc")]
    model.compile(keras.optimizers.SGD(0.0), lambda y, found: tf.reduce_max(abs(y - found)), metrics=metrics)
    model.fit(X, labels, 5, verbose=0, shuffle=False, validation_data=(X[:9], labels[:9]), callbacks=[Told()])
    keep("figures", seen)
    auc = keras.metrics.AUC()
    error = X @ model.get_weights()[0] - labels
    auc.update_state(labels, error + labels)
    others = np.mean(abs(error)), auc.result()

    def largest(rows):
        parts = [rows[first : first + 5] for first in range(0, len(rows), 5)]
        return sum(abs(part).max() * len(part) for part in parts) / len(rows)

    expected = [[np.mean(error**2), *others, np.mean(error[:9] ** 2)]] * 6
    keep("figures expected", [*expected, [largest(error), *others, largest(error[:9])]])


def of_many_kinds():
    set_period(4)
    linear("looks").fit(X, Y, 4, verbose=0, callbacks=[Looks()])
    saved = keras.models.load_model(folder / "saved.keras")
    keep("saved", [*saved.get_weights(), *saved.optimizer.variables])
    keras.utils.set_random_seed(2)
    layers = [keras.layers.Embedding(30, 3), keras.layers.Flatten(), keras.layers.BatchNormalization()]
    layers += [keras.layers.Dense(3, "relu", kernel_regularizer="l2"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,), dtype="int32"), *layers], name="words")
    model.compile(keras.optimizers.Adam(0.01, global_clipnorm=1.0, use_ema=True), "mse", metrics=["mae"])
    history = model.fit(words, Y, 8, epochs=2, verbose=0, validation_data=(words[:9], Y[:9])).history
    keep("words", [*model.get_weights(), *model.optimizer.variables, *(history[name] for name in sorted(history))])


class Custom(keras.Model):
    def __init__(self):
        super().__init__()
        # Keras does not find a variable in a function.
        kernel = keras.Variable(np.ones((4, 1)))
        self.kernel_of = lambda: kernel

    def call(self, x):
        return tf.cast(x, tf.float64) @ self.kernel_of()

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2) + 0 * tf.random.uniform([], dtype=tf.float64)
        kernel = self.kernel_of()
        self.optimizer.apply_gradients([(tape.gradient(loss, kernel), kernel)])
        return {"loss": loss}


def with_a_step_of_its_own():
    set_period(3)
    model, each = Custom(), Each()
    model.compile(keras.optimizers.SGD(RATE, MOMENTUM))
    model(X[:1])
    model.fit(X, Y, 6, epochs=2, verbose=0, shuffle=False, callbacks=[each])
    keep("custom", each.seen)
    steps = expected(np.ones((4, 1)), 6, 3, 2)
    keep("custom expected", [step[matex_tf.rank()] for step in steps])


class Waves(keras.Model):
    """A model with a complex weight, which Keras does not know."""

    def __init__(self):
        super().__init__()
        self.kernel = [tf.Variable(tf.ones([4, 1], tf.complex128))]

    def call(self, x):
        return tf.cast(x, tf.complex128) @ self.kernel[0]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(abs(self(x, training=True) - tf.complex(tf.zeros_like(y), y)) ** 2)
        self.kernel[0].assign_sub(RATE * tape.gradient(loss, self.kernel[0]))
        return {"loss": loss}


def with_complex_weights():
    set_period(1)
    model = Waves()
    model.compile()
    model.fit(X, Y, 26, epochs=2, verbose=0, shuffle=False)
    keep("waves", model.kernel)
    kernel = np.ones((4, 1), complex)
    for _ in range(2):
        kernel = kernel - RATE * 2 * X.T @ (X @ kernel - 1j * Y) / len(X)
    keep("waves expected", [kernel])


def as_allreduce():
    model = linear("eagerly", run_eagerly=True)
    model.fit(X, Y, 26, verbose=0)
    linear("several", steps_per_execution=2).fit(X, Y, 26, verbose=0)
    linear("scales", keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE))).fit(X, Y, 26, verbose=0)
    linear("accumulates", keras.optimizers.SGD(RATE, gradient_accumulation_steps=2)).fit(X, Y, 26, verbose=0)
    model = linear("batches")
    model.train_on_batch(X, Y)
    keep("allreduce", model.get_weights())

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        model.optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    for _ in range(2):
        step(tf.constant(X), tf.constant(Y))
    keep("loop", model.get_weights())


by_numpy()
figures()
of_many_kinds()
with_a_step_of_its_own()
with_complex_weights()
as_allreduce()
for rank, one in enumerate(objects.allgather(found, "what the ranks found")):
    np.savez(folder / f"rank-{rank}.npz", **one)
