"""With `MATEX_SYNC_BATCHNORM=off` rows meet in BatchNormalization by choice: batches are shared out all the same."""

import launch

SCRIPT = """
import keras
import numpy as np
import tensorflow as tf
from matex_tf import steps

x = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
rows = []


def built():
    keras.utils.set_random_seed(1)
    layers = [keras.Input((6,)), keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    return keras.Sequential(layers)


def loop(wrap, meet=False):
    model, optimizer = built(), keras.optimizers.SGD(0.1)

    def step(a):
        with tf.GradientTape() as tape:
            y = model(a, training=True) - a[:, :1]
            loss = tf.reduce_mean(y ** 2) + (tf.reduce_mean(y @ tf.transpose(y)) if meet else 0.0)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    step = wrap(step)
    for a in tf.data.Dataset.from_tensor_slices(x).batch(16):
        step(a)
        found = steps.current_slice()
    return 16 if found is None else found.stop - found.start


print("LOOPS", loop(tf.function), loop(lambda step: step), loop(tf.function, True), loop(lambda step: step, True))


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = built()

    def call(self, a, training=False):
        return self.inner(a, training=training)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.compute_loss(data[0], data[1], self(data[0], training=True))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        tf.print("STEP", tf.shape(data[0])[0])
        return {"loss": loss}


model = Own()
model.compile("sgd", "mse")
model(x[:2])
model.fit(x, x[:, :1], batch_size=16, verbose=0)
"""


def test_statistics_of_each_rank_do_not_make_batches_whole():
    result = launch.run(2, SCRIPT, env={"MATEX_SYNC_BATCHNORM": "off", "MATEX_OUTPUT": "all"}).check()
    assert result.stdout.count("LOOPS 8 8 16 16") == 2, result.output
    assert result.output.count("STEP 8") == 8 and "STEP 16" not in result.output, result.output
