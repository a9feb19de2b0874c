"""The script whose step is drawn: a small convolutional network on random numbers."""

import keras
import numpy as np

keras.utils.set_random_seed(1)
x = np.random.rand(2048, 28, 28, 1).astype("float32")
y = np.random.randint(0, 10, 2048)
model = keras.Sequential(
    [
        keras.Input((28, 28, 1)),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.Conv2D(64, 3, strides=2, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(256, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x, y, batch_size=64, epochs=2, verbose=2)
