"""Steps counted by hand over an endless iterator, with a learning rate set in the loop."""

import numpy as np
import tensorflow as tf

data = np.random.RandomState(0).randn(90, 5).astype("float32")
target = (data**2).sum(axis=1)
train_iter = iter(tf.data.Dataset.from_tensor_slices((data, target)).shuffle(90).batch(18).repeat())
model = tf.keras.Sequential([tf.keras.layers.Dense(10, activation="tanh"), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.Adam(0.01)
train_loss = tf.keras.metrics.Mean()


@tf.function
def update(inputs, labels):
    with tf.GradientTape() as tape:
        error = tf.reduce_mean(tf.abs(model(inputs, training=True)[:, 0] - tf.cast(labels, model.compute_dtype)))
    grads = tape.gradient(error, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return error


for step in range(1, 13):
    inputs, labels = next(train_iter)
    if step == 8:
        optimizer.learning_rate = 0.001
    train_loss(update(inputs, labels))
    if step % 4 == 0:
        print(f"step {step} loss {train_loss.result():.5f} rate {float(optimizer.learning_rate):.4f}")
        train_loss.reset_state()
