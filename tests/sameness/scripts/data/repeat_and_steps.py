"""An endless dataset and steps_per_epoch."""

import numpy as np
import tensorflow as tf

x = np.random.uniform(size=(100, 7)).astype(np.float32)
y = np.random.randint(0, 2, size=(100,))
BUFFER_SIZE, BATCH_SIZE = 100, 24

train = tf.data.Dataset.from_tensor_slices((x, y))
train = train.cache().shuffle(BUFFER_SIZE).repeat().batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)
val = tf.data.Dataset.from_tensor_slices((x[:33], y[:33])).batch(BATCH_SIZE).repeat()

model = tf.keras.Sequential(
    [tf.keras.layers.Dense(10, activation="tanh"), tf.keras.layers.Dense(1, activation="sigmoid")]
)
model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["AUC"])
history = model.fit(train, epochs=3, steps_per_epoch=5, validation_data=val, validation_steps=2, verbose=2)
