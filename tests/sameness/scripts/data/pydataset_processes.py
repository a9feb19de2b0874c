"""A PyDataset whose items are made in other processes, with augmentation by a generator of its own."""

import keras
import numpy as np


class Augmented(keras.utils.PyDataset):
    def __init__(self, x, y, batch_size, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y, self.batch_size = x, y, batch_size

    def __len__(self):
        return int(np.ceil(len(self.x) / float(self.batch_size)))

    def __getitem__(self, index):
        low = index * self.batch_size
        high = min(low + self.batch_size, len(self.x))
        rng = np.random.default_rng(index)
        batch = self.x[low:high] + rng.normal(0.0, 0.01, self.x[low:high].shape)
        return batch, self.y[low:high]


if __name__ == "__main__":
    rng = np.random.default_rng(1)
    x, y = rng.random((96, 5)), rng.random((96, 1))
    data = Augmented(x, y, 20, workers=2, use_multiprocessing=True)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
    model.compile("sgd", "mae")
    history = model.fit(data, epochs=2, shuffle=False, verbose=2)
