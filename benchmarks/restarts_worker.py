"""The script that benchmarks/restarts.py runs on ranks: two calls of `fit`, and what can be seen of them at the end.

`python -m matex_tf restarts_worker.py NOTES`: each rank notes its process there, by its number, for who kills it.
"""

import json
import os
import posix  # the ranks' own view of files leaves it alone
import sys
import time

import numpy as np
import tensorflow as tf

keras = tf.keras
rank = sys.modules["matex_tf"].rank() if "matex_tf" in sys.modules else 0
note = posix.open(os.path.join(sys.argv[1], str(rank)), os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
posix.write(note, str(os.getpid()).encode())
posix.close(note)
keras.backend.set_floatx("float64")
keras.utils.set_random_seed(7)
rng = np.random.default_rng(1)
x = rng.random((96, 8))
y = np.sin(x @ rng.random((8, 1)))


class Slow(keras.callbacks.Callback):
    """Steps take a while, so that they can be interrupted. Each tells which batch the update had."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        print("BATCH", self.call, int(self.model.optimizer.iterations), self.epoch, batch, flush=True)
        time.sleep(float(os.environ.get("STEP_SECONDS", "0.02")))


class Seen(keras.layers.Layer):
    """Counts how often each row was trained; its number is its first entry."""

    def build(self, shape):
        self.seen = self.add_weight(shape=(len(x),), dtype="int64", initializer="zeros", trainable=False, name="seen")

    def call(self, rows, training=False):
        if training:
            numbers = tf.one_hot(tf.cast(rows[:, 0], tf.int32), len(x), dtype=tf.int64)
            self.seen.assign_add(tf.reduce_sum(numbers, 0))
        return rows[:, 1:]


layers = []
if os.environ.get("MATEX_STRATEGY", "").startswith("async"):  # else each rank would have to see all rows
    x = np.concatenate([np.arange(len(x))[:, None], x], 1)
    layers.append(Seen())
model = keras.Sequential(
    [keras.Input(x.shape[1:]), *layers, keras.layers.Dense(16, "tanh"), keras.layers.BatchNormalization()]
)
model.add(keras.layers.Dropout(0.0))
model.add(keras.layers.Dense(1))
model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).batch(8)
plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=0.01)
first = model.fit(data, epochs=20, validation_data=(x, y), verbose=0, callbacks=[Slow(1), plateau])
batches = [int(model.optimizer.iterations)]
model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mae")
second = model.fit(x, y, batch_size=8, epochs=20, verbose=0, callbacks=[Slow(2)])
batches.append(int(model.optimizer.iterations))
print("COUNTS" + json.dumps([batches, *(layer.seen.numpy().tolist() for layer in layers)]), flush=True)
weights = [weight.ravel().tolist() for weight in model.get_weights()]
print("CURVE" + json.dumps([first.history, second.history, weights]), flush=True)
