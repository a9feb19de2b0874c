"""Epochs of 10 batches of 32 rows, and of other numbers, which `matex plan` is to count: `python case.py KIND`."""

import sys

import numpy as np
import tensorflow as tf

KIND = sys.argv[1]
x = np.random.default_rng(0).normal(size=(320, 4)).astype(np.float32)
y = x[:, :1] + 1


def model(**compiled):
    made = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.01, **compiled.pop("optimizer", {}))
    made.compile(optimizer=optimizer, loss="mse", **compiled)
    return made


def endless():
    while True:
        yield x[:32], y[:32]


def from_generator(give):
    spec = tuple(tf.TensorSpec((None, width), tf.float32) for width in (4, 1))
    return tf.data.Dataset.from_generator(give, output_signature=spec)


class Pair(tf.keras.Model):
    """Two parts, each with its own update, as in a GAN."""

    def __init__(self):
        super().__init__()
        self.parts = [tf.keras.layers.Dense(1), tf.keras.layers.Dense(1)]
        self.updaters = [tf.keras.optimizers.SGD(0.01), tf.keras.optimizers.SGD(0.02)]

    def call(self, rows):
        return self.parts[0](rows) + self.parts[1](rows)

    def train_step(self, data):
        rows, labels = data
        for part, updater in zip(self.parts, self.updaters):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(rows) - labels) ** 2)
            weights = part.trainable_variables
            updater.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"loss": loss}


def pair():
    made = Pair()
    made.compile(optimizer="sgd")
    made.fit(x, y, batch_size=32, epochs=50, verbose=0)


def loop():
    layer, optimizer = model(), tf.keras.optimizers.SGD(0.01)

    @tf.function
    def step(rows, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((layer(rows) - labels) ** 2)
        weights = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

    for _ in range(50):
        for rows, labels in tf.data.Dataset.from_tensor_slices((x, y)).batch(32):
            step(rows, labels)


def ten_and_three():
    return ((x[:32], y[:32]) for _ in range(13))


{
    "fit": lambda: model().fit(x, y, batch_size=32, epochs=50, verbose=0),
    "accumulated": lambda: model(optimizer={"gradient_accumulation_steps": 4}).fit(
        x, y, batch_size=32, epochs=50, verbose=0
    ),
    "steps": lambda: model().fit(from_generator(endless), steps_per_epoch=7, epochs=50, verbose=0),
    "generator": lambda: model().fit(
        from_generator(ten_and_three), validation_data=(x[:64], y[:64]), epochs=50, verbose=0
    ),
    "endless": lambda: model().fit(from_generator(endless), epochs=1, verbose=0),
    "several": lambda: model(steps_per_execution=5).fit(x, y, batch_size=32, epochs=50, verbose=0),
    "pair": pair,
    "loop": loop,
}[KIND]()
