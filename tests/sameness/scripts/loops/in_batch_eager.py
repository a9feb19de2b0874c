"""Eager steps in which the rows of a batch meet: contrasted with each other, decorrelated, spread apart."""

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(0)
x_train = rng.randn(90, 6)
y_train = x_train + 0.1 * rng.randn(90, 6)


def contrastive(a, b):
    z = tf.math.l2_normalize(tf.concat([a, b], 0), 1)
    similar = tf.matmul(z, z, transpose_b=True) / 0.2 - 9.0 * tf.eye(len(z), dtype=z.dtype)
    partner = tf.roll(tf.range(len(z)), len(a), 0)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=partner, logits=similar))


def decorrelated(a, b):
    c = tf.transpose(a) @ b / 30
    return tf.reduce_sum((c - tf.eye(4, dtype=c.dtype)) ** 2)


def spread(a, b):
    return tf.reduce_mean(tf.nn.relu(1 - tf.math.reduce_std(a, axis=0))) + tf.reduce_mean((a - b) ** 2)


losses, models = [], []
for objective in (contrastive, decorrelated, spread):
    model = tf.keras.Sequential([tf.keras.layers.Dense(30, activation="tanh"), tf.keras.layers.Dense(4)])
    models.append(model)
    optimizer = tf.keras.optimizers.SGD(0.05)
    dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train)).batch(30)
    for epoch in range(2):
        for a, b in dataset:
            with tf.GradientTape() as tape:
                loss = objective(model(a), model(b))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            losses.append(float(loss))
    print("%s %.6f" % (objective.__name__, losses[-1]))
