"""Keras 2: Sequence, workers, flow of a generator, history in a dict."""

import numpy as np
import tensorflow as tf
from tensorflow.keras.utils import Sequence


class DataGenerator(Sequence):
    def __init__(self, list_IDs, labels, batch_size=16, shuffle=True):
        self.batch_size = batch_size
        self.labels = labels
        self.list_IDs = list_IDs
        self.shuffle = shuffle
        self.on_epoch_end()

    def __len__(self):
        return int(np.floor(len(self.list_IDs) / self.batch_size))

    def __getitem__(self, index):
        indexes = self.indexes[index * self.batch_size : (index + 1) * self.batch_size]
        X = np.stack([np.full(5, self.list_IDs[k] / 100.0) for k in indexes])
        return X, self.labels[indexes]

    def on_epoch_end(self):
        self.indexes = np.arange(len(self.list_IDs))
        if self.shuffle:
            np.random.shuffle(self.indexes)


labels = np.random.rand(100, 1)
training_generator = DataGenerator(np.arange(100), labels, shuffle=False)
model = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="tanh", input_shape=(5,)), tf.keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse", metrics=["mae"])
history = model.fit(training_generator, epochs=2, verbose=2, shuffle=False, validation_data=training_generator)


def gen():
    while True:
        yield np.random.rand(12, 5), np.random.rand(12, 1)


generated = model.fit(gen(), steps_per_epoch=3, epochs=2, verbose=2)
