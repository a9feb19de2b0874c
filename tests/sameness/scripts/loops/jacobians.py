"""A gradient for each row, by tape.jacobian: clipped one by one (private training), and in a Gauss-Newton step."""

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(0)
x_train = rng.randn(60, 4)
y_train = (x_train**2).sum(1, keepdims=True)
model = tf.keras.Sequential([tf.keras.layers.Dense(6, activation="tanh"), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.05)
BATCH_SIZE = 20
losses = []


def clipped(jacobian):
    axes = list(range(1, len(jacobian.shape)))
    return tf.reduce_sum(tf.clip_by_norm(jacobian, 0.5, axes=axes), 0) / BATCH_SIZE


for epoch in range(2):
    for x, y in tf.data.Dataset.from_tensor_slices((x_train, y_train)).batch(BATCH_SIZE):
        with tf.GradientTape() as tape:
            each = tf.reduce_sum((model(x, training=True) - y) ** 2, 1)
        jacobians = tape.jacobian(each, model.trainable_variables)
        optimizer.apply_gradients(zip(map(clipped, jacobians), model.trainable_variables))
        losses.append(float(tf.reduce_mean(each)))
    print("epoch %d: loss %.6f" % (epoch, losses[-1]))


@tf.function
def gauss_newton(x, y):
    with tf.GradientTape() as tape:
        residual = model(x) - y
    jacobians = tape.jacobian(residual, model.trainable_variables)
    J = tf.concat([tf.reshape(jacobian, [tf.shape(x)[0], -1]) for jacobian in jacobians], 1)
    step = tf.linalg.solve(tf.matmul(J, J, transpose_a=True) + tf.eye(37, dtype=J.dtype), tf.transpose(J) @ residual)
    begin = 0
    for variable in model.trainable_variables:
        size = int(np.prod(variable.shape))
        variable.assign_sub(tf.reshape(step[begin : begin + size], variable.shape))
        begin += size
    return tf.reduce_mean(residual**2)


@tf.function
def train_epoch(dataset):
    for x, y in dataset:
        with tf.GradientTape() as tape:
            each = tf.reduce_sum((model(x) - y) ** 2, 1)
        jacobians = tape.jacobian(each, model.trainable_variables)
        optimizer.apply_gradients([(clipped(j), v) for j, v in zip(jacobians, model.trainable_variables)])


for epoch in range(2):
    for x, y in tf.data.Dataset.from_tensor_slices((x_train, y_train)).batch(BATCH_SIZE):
        losses.append(float(gauss_newton(x, y)))
    train_epoch(tf.data.Dataset.from_tensor_slices((x_train, y_train)).batch(BATCH_SIZE))
    print("epoch %d: loss %.6f" % (epoch, losses[-1]))
