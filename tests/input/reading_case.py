"""Trains on images and on a loop of its own; stores what this rank has read and what it has decoded.

Arguments: the folder of the images, and the one for what is stored.
"""

import os
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

images, folder = map(Path, sys.argv[1:])
rank = sys.modules["matex_tf"].rank() if "matex_tf" in sys.modules else 0
keras.utils.set_random_seed(1)
keras.backend.set_floatx("float64")
decoded, pause = [0], [0.0]
found = {}


def read_bytes():
    return int(Path("/proc/self/io").read_text().split()[1])


def note(number):
    decoded[0] += 1
    time.sleep(pause[0])
    return np.int64(0)


def load(path, number):
    image = tf.io.decode_raw(tf.io.read_file(path), tf.uint8)
    number += tf.ensure_shape(tf.numpy_function(note, [number], tf.int64, stateful=False), [])
    return tf.cast(tf.reshape(image, [100, 100, 3])[::10, ::10], tf.float64) / 255, number % 3


def make():
    paths = sorted(map(str, images.glob("*.raw")))
    rows = tf.data.Dataset.from_tensor_slices((paths, np.arange(len(paths)))).shuffle(100, seed=2)
    return rows.map(load, tf.data.AUTOTUNE).batch(8).prefetch(2)


class Measured(keras.callbacks.Callback):
    """Notes what epochs after the first read: that has the first batch, which all ranks compare."""

    def on_epoch_begin(self, epoch, logs=None):
        self.before = read_bytes(), decoded[0]

    def on_epoch_end(self, epoch, logs=None):
        found["fit bytes"], found["fit decoded"] = read_bytes() - self.before[0], decoded[0] - self.before[1]


model = keras.Sequential([keras.Input((10, 10, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
model.compile(keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
found["fit loss"] = model.fit(make(), epochs=3, verbose=0, callbacks=[Measured()]).history["loss"]
found["weights"] = model.layers[-1].kernel.numpy()


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True))
    model.optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


dataset = make()
losses = []
for epoch in range(3):
    before, pause[0] = decoded[0], 0.0 if epoch else 0.03  # ranks choose in the first one
    for x, y in dataset:
        losses.append(float(step(x, y)))
    found["loop decoded"] = decoded[0] - before
found["loop losses"] = losses
found["predicted"] = model.predict(dataset, verbose=0)
np.savez(os.path.join(folder, f"rank-{rank}.npz"), **found)
