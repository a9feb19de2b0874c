"""Steps in which rank 1 has gradients that are no numbers, in every way of training: `numerics_case.py WAY`.

Prints "stopped" and the error where one is raised, on every rank, and else whether the weights are finite.
"""

import sys

import numpy as np
import tensorflow as tf

import matex_tf
from matex_tf.gradients import custom_gradients

keras = tf.keras
WAY = sys.argv[1]
RANK = matex_tf.rank()


def spoiled(x):
    """`x`, whose gradient is NaN and infinite in places on rank 1 from the third step on."""
    with custom_gradients.trust_gradients():  # else every rank would compute whole batches
        return spoiled_at_will(x)


@tf.custom_gradient
def spoiled_at_will(x):

    def gradient(dy):
        late = tf.cast(STEP >= 2, dy.dtype) * (1 if RANK == 1 or "alike" in WAY else 0)
        flat = tf.reshape(dy, [-1])
        bad = tf.constant([np.nan, np.nan, np.inf], dy.dtype)
        return tf.reshape(tf.where(late > 0, tf.concat([bad, flat[3:]], 0), flat), tf.shape(dy))

    return tf.identity(x), gradient


STEP = tf.Variable(0, trainable=False, name="step")


class Spoiled(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=(int(shape[-1]), 3), initializer="ones")

    def call(self, x):
        return tf.matmul(x, spoiled(tf.convert_to_tensor(self.kernel)))


def main() -> None:
    x, y = np.ones((48, 4), "float32"), np.ones((48, 1), "float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5), Spoiled(name="spoiled"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(1e-3)
    if "scaled" in WAY:
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
    if "fit" in WAY:

        class Count(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                STEP.assign_add(1)

        model.compile(optimizer, "mse", jit_compile="jit" in WAY)
        model.fit(x, y, batch_size=8, verbose=0, shuffle=False, callbacks=[Count()])
        return report(model)

    def step(a, b):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a) - b) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    step = step if "eager" in WAY else tf.function(step, jit_compile="jit" in WAY)
    for a, b in tf.data.Dataset.from_tensor_slices((x, y)).batch(8):
        step(a, b)
        STEP.assign_add(1)
    report(model)


def v1() -> None:
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None, 4])
        kernel = tf.compat.v1.get_variable("kernel", initializer=tf.ones([4, 3]))
        bad = tf.constant([np.nan if RANK == 1 else 1.0, 1.0, 1.0])
        loss = tf.reduce_mean(tf.matmul(x, kernel) * bad)
        train = tf.compat.v1.train.GradientDescentOptimizer(1e-3).minimize(loss)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(train, {x: np.ones((8, 4))})


def sparse() -> None:
    table = tf.Variable(tf.ones([10, 2]), name="table")
    optimizer = keras.optimizers.SGD(1e-3)
    for rows in tf.data.Dataset.from_tensor_slices(np.arange(8)).batch(4):
        with tf.GradientTape() as tape:
            picked = tf.gather(table, rows)
            loss = tf.reduce_mean(picked * (np.nan if RANK == 1 and STEP.numpy() else 1.0))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        STEP.assign_add(1)


def report(model) -> None:
    print(f"{WAY} rank {RANK} finite {all(np.isfinite(one).all() for one in model.get_weights())}", flush=True)


try:
    {"v1": v1, "sparse": sparse}.get(WAY, main)()
except (tf.errors.OpError, matex_tf.ops.MismatchError) as error:
    text = " ".join(str(error).split())
    print(f"{WAY} rank {RANK} stopped: {text[text.find('gradients are not') :][:600]}", flush=True)
