"""Every optimizer of Keras, one after the other."""

import keras
import numpy as np

rng = np.random.RandomState(0)
x, y = rng.rand(64, 6), rng.rand(64, 2)
names = [
    "SGD",
    "RMSprop",
    "Adam",
    "AdamW",
    "Adadelta",
    "Adagrad",
    "Adamax",
    "Adafactor",
    "Nadam",
    "Ftrl",
    "Lion",
    "Lamb",
    "Muon",
]
models = []
for name in names:
    if not hasattr(keras.optimizers, name):
        continue
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)])
    model.compile(getattr(keras.optimizers, name)(learning_rate=0.01), "mse")
    history = model.fit(x, y, batch_size=20, epochs=1, verbose=0)
    print(f"{name}: {history.history['loss'][-1]:.6f}")
    models.append(model)
