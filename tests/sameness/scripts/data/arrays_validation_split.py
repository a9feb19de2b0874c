"""Simple classifier on arrays, as in the first example of keras.io."""

import keras
import numpy as np
from keras import layers

num_classes = 4
rng = np.random.default_rng(0)
x_train = rng.random((230, 8, 8)).astype("float32")
y_train = rng.integers(0, num_classes, 230)
x_test = rng.random((50, 8, 8)).astype("float32")
y_test = rng.integers(0, num_classes, 50)

x_train = np.expand_dims(x_train, -1)
x_test = np.expand_dims(x_test, -1)
print("x_train shape:", x_train.shape)
print(x_train.shape[0], "train samples")

y_train = keras.utils.to_categorical(y_train, num_classes)
y_test = keras.utils.to_categorical(y_test, num_classes)

model = keras.Sequential(
    [
        keras.Input(shape=(8, 8, 1)),
        layers.Conv2D(4, kernel_size=(3, 3), activation="tanh"),
        layers.AveragePooling2D(pool_size=(2, 2)),
        layers.Flatten(),
        layers.Dense(num_classes, activation="softmax"),
    ]
)
model.summary()
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
history = model.fit(x_train, y_train, batch_size=32, epochs=2, validation_split=0.1, verbose=2)

score = model.evaluate(x_test, y_test, verbose=0)
print("Test loss:", score[0])
print("Test accuracy:", score[1])
