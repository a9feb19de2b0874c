"""A keras.utils.PyDataset, read by two workers, that shuffles itself at the end of an epoch."""

import math

import keras
import numpy as np


class Signals(keras.utils.PyDataset):
    def __init__(self, x, y, batch_size, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y = x, y
        self.batch_size = batch_size
        self.order = np.arange(len(x))

    def __len__(self):
        return math.ceil(len(self.x) / self.batch_size)

    def __getitem__(self, idx):
        chosen = self.order[idx * self.batch_size : (idx + 1) * self.batch_size]
        return self.x[chosen], self.y[chosen]

    def on_epoch_end(self):
        np.random.shuffle(self.order)


x = np.random.rand(150, 10).astype("float32")
y = x.sum(axis=1, keepdims=True) ** 2
train = Signals(x, y, 32, workers=2, use_multiprocessing=False, max_queue_size=4)
valid = Signals(x[:40], y[:40], 16)

model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
history = model.fit(train, epochs=3, validation_data=valid, shuffle=False, verbose=2)
print("evaluate:", model.evaluate(valid, verbose=0))
