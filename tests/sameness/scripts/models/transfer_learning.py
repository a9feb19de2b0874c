"""Frozen layers first, fine-tuning with a lower rate after; the base is in inference mode."""

import keras
import numpy as np

rng = np.random.RandomState(0)
x, y = rng.rand(80, 10, 10, 1), rng.randint(0, 2, (80, 1))
base = keras.Sequential(
    [
        keras.Input((10, 10, 1)),
        keras.layers.Conv2D(4, 3, activation="tanh"),
        keras.layers.BatchNormalization(),
        keras.layers.GlobalAveragePooling2D(),
    ],
    name="base",
)
base.trainable = False
inputs = keras.Input((10, 10, 1))
outputs = keras.layers.Dense(1)(base(inputs, training=False))
model = keras.Model(inputs, outputs)
print("trainable:", len(model.trainable_variables), "of", len(model.weights))
model.compile(
    optimizer=keras.optimizers.Adam(1e-2),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy()],
)
first = model.fit(x, y, epochs=2, batch_size=32, verbose=2)

base.trainable = True
for layer in base.layers[:1]:
    layer.trainable = False
model.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy()],
)
print("trainable:", len(model.trainable_variables), "of", len(model.weights))
second = model.fit(x, y, epochs=4, initial_epoch=first.epoch[-1] + 1, batch_size=32, verbose=2)
