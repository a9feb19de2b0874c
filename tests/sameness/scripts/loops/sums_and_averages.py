"""Losses that are sums, and averages over a global batch size."""

import keras
import numpy as np
import tensorflow as tf

GLOBAL_BATCH_SIZE = 20
x = np.random.RandomState(0).randn(60, 4)
y = np.random.RandomState(1).randint(0, 3, 60)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(GLOBAL_BATCH_SIZE)


def build():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)])


per_row = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def by_sum(labels, predictions):
    return tf.reduce_sum(per_row(labels, predictions)) * (1.0 / GLOBAL_BATCH_SIZE)


def by_average(labels, predictions):
    return tf.nn.compute_average_loss(per_row(labels, predictions), global_batch_size=GLOBAL_BATCH_SIZE)


def plain_sum(labels, predictions):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")(labels, predictions)


models = []
for compute_loss in (by_sum, by_average, plain_sum):
    model, optimizer = build(), keras.optimizers.SGD(0.01, momentum=0.9)

    @tf.function
    def train_step(inputs, labels, model=model, optimizer=optimizer, compute_loss=compute_loss):
        with tf.GradientTape() as tape:
            loss = compute_loss(labels, model(inputs, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    for epoch in range(2):
        total_loss, num_batches = 0.0, 0
        for inputs, labels in dataset:
            total_loss += train_step(inputs, labels)
            num_batches += 1
        print(f"{compute_loss.__name__} epoch {epoch}: {float(total_loss / num_batches):.5f}")
    models.append(model)

model = build()
model.compile(keras.optimizers.SGD(0.001), plain_sum)
history = model.fit(x, y, batch_size=20, epochs=2, verbose=2)
models.append(model)
