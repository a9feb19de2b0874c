"""Trains two models in one step, with one thread, while another thread reads weights; then one with loss scaling.

Argument: the folder. The weights are large enough for the ring algorithm. The second update is announced before the
weights of the first one are published.
"""

import sys
import threading
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import matex_tf
from matex_tf.steps import publishing

tf.config.threading.set_inter_op_parallelism_threads(1)
x = tf.constant(np.random.default_rng(0).normal(size=(24, 40)).astype("float32"))


def network():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(300, "tanh"), keras.layers.Dense(300, "tanh"), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((40,)), *layers])


models = [network(), network()]
optimizers = [keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.01, momentum=0.9)]


@tf.function
def step(rows):
    with tf.GradientTape(persistent=True) as tape:
        first, second = (model(rows, training=True) for model in models)
        losses = [tf.reduce_mean((first - second - 1) ** 2), tf.reduce_mean((first + second - rows[:, :1]) ** 2)]
    gradients = [tape.gradient(loss, model.trainable_variables) for loss, model in zip(losses, models)]
    for optimizer, model, of_one in zip(optimizers, models, gradients):
        optimizer.apply_gradients(zip(of_one, model.trainable_variables))
    return losses


published = []
original = publishing._publish_group


def note_group(group, place, number):
    published.append((number, len(group)))
    return original(group, place, number)


publishing._publish_group = note_group
found = {}
for number in range(6):
    losses = step(x)
    reader = threading.Thread(target=models[0].get_weights)
    reader.start()
    found[f"losses {number}"] = np.array(losses)
    reader.join()
    if number % 2:
        found[f"weights {number}"] = np.concatenate([one.ravel() for one in models[1].get_weights()])

if published:  # the weights are published in several groups; a step needs the group with the lowest number first
    last = published[-3:]
    assert [number for number, _ in last] == [2, 1, 0] and sum(count for _, count in last) == 12, published
    print("published in groups", file=sys.stderr)

scaled = network()
scaled.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)), "mse")
history = scaled.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0)
found["scaled"] = np.array(history.history["loss"])
found["scaled weights"] = np.concatenate([one.ravel() for one in scaled.get_weights()])
np.savez(Path(sys.argv[1]) / f"rank-{matex_tf.rank()}.npz", **found)
