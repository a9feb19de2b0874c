"""Batches sliced from arrays in a for loop."""

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(1)
X = rng.randn(150, 8).astype(np.float32)
Y = np.argmax(X[:, :3], axis=1)
batch_size = 30

model = tf.keras.Sequential(
    [tf.keras.layers.Input((8,)), tf.keras.layers.Dense(12, activation="tanh"), tf.keras.layers.Dense(3)]
)
loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam(0.01)


@tf.function
def train_step(images, labels):
    with tf.GradientTape() as tape:
        predictions = model(images, training=True)
        loss = loss_object(labels, predictions)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


losses = []
for epoch in range(3):
    order = rng.permutation(len(X))
    for i in range(0, len(X), batch_size):
        batch = order[i : i + batch_size]
        losses.append(float(train_step(X[batch], Y[batch])))
    print(f"epoch {epoch + 1}: loss {np.mean(losses[-5:]):.5f}")
accuracy = np.mean(np.argmax(model(X).numpy(), axis=1) == Y)
print("accuracy", accuracy)
