"""fit from endless Python generators."""

import numpy as np
from tensorflow import keras


def batches(x, y, batch_size, seed):
    rng = np.random.RandomState(seed)
    while True:
        index = rng.permutation(len(x))
        for i in range(0, len(x) - batch_size + 1, batch_size):
            chosen = index[i : i + batch_size]
            yield x[chosen], y[chosen]


def same_batch(x, y):
    while True:
        yield x, y


np.random.seed(0)
X = np.random.randn(128, 4)
Y = (X @ np.array([1.0, -2.0, 3.0, 0.5]))[:, None]

model = keras.models.Sequential()
model.add(keras.layers.Input(shape=(4,)))
model.add(keras.layers.Dense(8, activation="tanh"))
model.add(keras.layers.Dense(1))
model.compile(loss="mean_squared_error", optimizer=keras.optimizers.SGD(learning_rate=0.01))
history = model.fit(
    batches(X, Y, 30, seed=1),
    steps_per_epoch=4,
    epochs=3,
    validation_data=same_batch(X[:50], Y[:50]),
    validation_steps=2,
    verbose=2,
)
