"""Image classification with augmentation, BatchNormalization and Dropout."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

images = (np.random.RandomState(0).rand(96, 12, 12, 3) * 255).astype("uint8")
labels = np.random.RandomState(1).randint(0, 3, 96)
train_ds = tf.data.Dataset.from_tensor_slices((images, labels)).batch(32).prefetch(tf.data.AUTOTUNE)

data_augmentation = keras.Sequential([layers.RandomFlip("horizontal"), layers.RandomRotation(0.1)])
model = keras.Sequential(
    [
        keras.Input((12, 12, 3)),
        data_augmentation,
        layers.Rescaling(1.0 / 255),
        layers.Conv2D(4, 3, padding="same", use_bias=False),
        layers.BatchNormalization(),
        layers.Activation("relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dropout(0.3),
        layers.Dense(3),
    ]
)
model.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
history = model.fit(train_ds, validation_data=train_ds, epochs=2, verbose=0)
print(sorted(history.history))
