"""train_on_batch and test_on_batch."""

import keras
import numpy as np

rng = np.random.default_rng(5)
x, y = rng.normal(size=(160, 6)), rng.integers(0, 2, size=(160, 1))
model = keras.Sequential(
    [keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1, activation="sigmoid")]
)
model.compile(loss="binary_crossentropy", optimizer=keras.optimizers.Adam(0.01), metrics=["accuracy"])
batch_size = 40
for epoch in range(3):
    idx = rng.permutation(len(x))
    for i in range(0, len(x), batch_size):
        chosen = idx[i : i + batch_size]
        loss, accuracy = model.train_on_batch(x[chosen], y[chosen])
    print(f"{epoch} [loss: {loss:.6f}, acc.: {100 * accuracy:.2f}%]")
    model.reset_metrics()
result = model.test_on_batch(x, y, return_dict=True)
print({name: round(float(value), 6) for name, value in result.items()})
