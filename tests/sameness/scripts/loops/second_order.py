"""A physics-informed network: second derivatives with respect to inputs, then a penalty on weights' gradients."""

import keras
import numpy as np
import tensorflow as tf

model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(12, activation="tanh"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(0.01)
points = np.linspace(0, 1, 60).reshape(-1, 1)
dataset = tf.data.Dataset.from_tensor_slices(points.astype(keras.backend.floatx())).shuffle(60, seed=1).batch(20)


@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        with tf.GradientTape() as second:
            second.watch(x)
            with tf.GradientTape() as first:
                first.watch(x)
                u = model(x)
            u_x = first.gradient(u, x)
        u_xx = second.gradient(u_x, x)
        residual = u_xx + np.pi**2 * tf.sin(np.pi * x)
        boundary = tf.square(model(tf.zeros_like(x[:1]))) + tf.square(model(tf.ones_like(x[:1])))
        loss = tf.reduce_mean(tf.square(residual)) + tf.reduce_mean(boundary)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss


losses = []
for epoch in range(4):
    for x in dataset:
        loss = train_step(x)
    losses.append(float(loss))
    print(f"epoch {epoch} loss {losses[-1]:.6f}")

x = tf.constant(points)
with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    y = tf.reduce_sum(x**3)
    dy = tape.gradient(y, x)
print("d2y/dx2 at 1:", float(tape.gradient(dy, x)[-1, 0]))
