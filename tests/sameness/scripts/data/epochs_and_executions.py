"""validation_freq, initial_epoch and steps_per_execution."""

import keras
import numpy as np

x = np.linspace(-1, 1, 300).reshape(-1, 1).astype("float32")
y = np.sin(3 * x)

inputs = keras.Input(shape=(1,))
hidden = keras.layers.Dense(16, activation="tanh")(inputs)
outputs = keras.layers.Dense(1)(hidden)
model = keras.Model(inputs, outputs)
model.compile("rmsprop", "mse", metrics=["mae"], steps_per_execution=4)

first = model.fit(x, y, batch_size=25, epochs=2, verbose=0)
second = model.fit(
    x, y, batch_size=25, initial_epoch=2, epochs=6, validation_data=(x[::3], y[::3]), validation_freq=2, verbose=0
)
print(second.epoch)
print(sorted(second.history))
print("val_loss", second.history["val_loss"])
