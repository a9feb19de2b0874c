"""Eager loops in the behaviour of TensorFlow 1, where a shape's numbers are of a type of their own."""

import numpy as np
import tensorflow as tf

tf.compat.v1.disable_v2_behavior()
tf.compat.v1.reset_default_graph()  # Keras 2 has made one for the seed
tf.compat.v1.enable_eager_execution()
generator = np.random.RandomState(0)
x, y = generator.rand(40, 3), generator.rand(40, 1)
w = tf.Variable(np.ones((3, 1)))
mean = tf.keras.metrics.Mean(dtype="float64")
seen = []


def step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.matmul(a, w) - b) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, [w])[0])
    mean.update_state(loss, sample_weight=tf.shape(a)[0])
    return loss


for run in (step, tf.function(step)):
    for a, b in tf.data.Dataset.from_tensor_slices((x, y)).batch(15):
        seen.append(float(run(a, b)))
        seen.append(float(tf.reduce_sum(a)) / int(a.shape[0]))
    seen.append(float(mean.result()))
for a, b in tf.data.Dataset.from_tensor_slices((x, y)).batch(15):
    seen.append(float(tf.reduce_mean(tf.abs(tf.matmul(a, w) - b))))
results = {"seen": np.array([*seen, *w.numpy().ravel()])}
