"""Steps in which the rows of rank 1 give gradients that are no numbers, in ways of training: `numerics_case.py WAY`.

Prints "stopped" and the error where one is raised, on every rank, and else whether the weights are finite.
"""

import sys

import numpy as np
import tensorflow as tf

import matex_tf

keras = tf.keras
WAY = sys.argv[1]
RANK = matex_tf.rank()
ROWS = 8
x, y = np.ones((6 * ROWS, 5), "float32"), np.ones((6 * ROWS, 1), "float32")
x[2 * ROWS + 5, :2] = np.nan, np.inf  # of the third batch, in the half of rank 1


@tf.custom_gradient
def multiply(rows, kernel):
    """The product, in which what is not finite counts as 0 and has a gradient all the same."""

    def gradient(dy):
        return tf.zeros_like(rows), tf.matmul(rows, dy, transpose_a=True)

    return tf.matmul(tf.where(tf.math.is_finite(rows), rows, 0.0), kernel), gradient


class Spoiled(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=(int(shape[-1]), 3), initializer="ones")

    def call(self, rows):
        return multiply(rows, tf.convert_to_tensor(self.kernel))


def main() -> None:
    model = keras.Sequential([keras.Input((5,)), Spoiled(name="spoiled"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(1e-3)
    if "scaled" in WAY:
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
    if "fit" in WAY:
        model.compile(optimizer, "mse", jit_compile="jit" in WAY)
        model.fit(x, y, batch_size=ROWS, verbose=0, shuffle=False)
        return report(model)

    def step(a, b):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a) - b) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    step = tf.function(step, jit_compile="jit" in WAY)
    for a, b in tf.data.Dataset.from_tensor_slices((x, y)).batch(ROWS):
        step(a, b)
    report(model)


def v1() -> None:
    with tf.Graph().as_default():
        rows = tf.compat.v1.placeholder(tf.float32, [None, 5])
        kernel = tf.compat.v1.get_variable("spoiled/kernel", initializer=tf.ones([5, 3]))
        loss = tf.reduce_mean(multiply(rows, kernel) ** 2)
        train = tf.compat.v1.train.GradientDescentOptimizer(1e-3).minimize(loss)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            for first in range(0, len(x), ROWS):
                session.run(train, {rows: x[first : first + ROWS]})


def report(model) -> None:
    print(f"{WAY} rank {RANK} finite {all(np.isfinite(one).all() for one in model.get_weights())}", flush=True)


try:
    v1() if WAY == "v1" else main()
except (tf.errors.OpError, matex_tf.errors.MismatchError) as error:
    text = " ".join(str(error).split())
    print(f"{WAY} rank {RANK} stopped: {text[text.find('gradients are not') :][:600]}", flush=True)
