"""Eager steps whose loss is a curve of a mean or sum over rows: root mean square, logarithm, power, with penalties."""

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(0)
x_train = rng.randn(100, 6)
y_train = x_train @ rng.randn(6, 1) + 0.1 * rng.randn(100, 1)


def rmse(y, p, w):
    return tf.sqrt(tf.reduce_mean(tf.square(y - p)))


def logarithm(y, p, w):
    return tf.math.log(1.0 + tf.reduce_sum(tf.square(y - p))) + 0.01 * tf.nn.l2_loss(w)


def power(y, p, w):
    mse = tf.reduce_mean((y - p) ** 2)
    return 0.5 * mse**1.5 + 0.1 * mse + 0.1 * tf.sqrt(tf.reduce_sum(tf.square(w)))


def keras_loss(y, p, w):
    return tf.abs(tf.keras.losses.MeanSquaredError()(y, p) - 0.3) + 0.3


losses = []
for objective in (rmse, logarithm, power, keras_loss):
    w = tf.Variable(np.full([6, 1], 0.1))
    optimizer = tf.keras.optimizers.SGD(0.05)
    data = tf.data.Dataset.from_tensor_slices((x_train, y_train)).batch(32)
    for epoch in range(2):
        for x, y in data:
            with tf.GradientTape() as tape:
                loss = objective(y, x @ w, w)
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])
            losses += [float(loss), float(tf.reduce_sum(tf.abs(w)))]
    print("%s %.6f" % (objective.__name__, loss))
