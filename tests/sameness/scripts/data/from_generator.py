"""tf.data.Dataset.from_generator over a Python function."""

import numpy as np
import tensorflow as tf


def samples():
    rng = np.random.default_rng(7)
    for _ in range(75):
        x = rng.normal(size=(6,)).astype("float32")
        yield x, np.float32(x[0] * x[1] > 0)


dataset = tf.data.Dataset.from_generator(
    samples,
    output_signature=(tf.TensorSpec((6,), tf.float32), tf.TensorSpec((), tf.float32)),
).batch(16)


def batches():
    rng = np.random.default_rng(8)
    for _ in range(4):
        x = rng.normal(size=(20, 6)).astype("float32")
        yield x, (x[:, 0] > 0).astype("float32")


ready_made = tf.data.Dataset.from_generator(
    batches, output_signature=(tf.TensorSpec((None, 6), tf.float32), tf.TensorSpec((None,), tf.float32))
)
model = tf.keras.Sequential(
    [tf.keras.Input((6,)), tf.keras.layers.Dense(8, activation="tanh"), tf.keras.layers.Dense(1, activation="sigmoid")]
)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
one = model.fit(dataset, epochs=2, verbose=2)
two = model.fit(ready_made, epochs=2, verbose=2)

optimizer = tf.keras.optimizers.SGD(0.1)
losses = []
for x, y in ready_made:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.keras.losses.binary_crossentropy(y[:, None], model(x)))
    gradients = tape.gradient(loss, model.trainable_weights)
    optimizer.apply_gradients(zip(gradients, model.trainable_weights))
    losses.append(float(loss))
print("losses", losses)
