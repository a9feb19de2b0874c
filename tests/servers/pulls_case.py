"""One thread trains two models in a step, which are read in between; then one with loss scaling. Argument:
the folder.

The weights are large enough for rings, and the second update is announced before the first one's weights are published.
"""

import sys
import threading
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import matex_tf
from matex_tf.rewrite import graph_ops

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


found = {}
for number in range(6):
    losses = step(x)
    reader = threading.Thread(target=models[0].get_weights)
    reader.start()
    found[f"losses {number}"] = np.array(losses)
    reader.join()
    if number % 2:
        found[f"weights {number}"] = np.concatenate([one.ravel() for one in models[1].get_weights()])

graphs = list(graph_ops.iterate_graphs(step.get_concrete_function(x).graph))
ops = [op for graph in graphs for op in graph.get_operations()]
awaited = {read.name for op in ops if op.type == "MatexAwaitPull" for read in op._control_outputs}
names = [list(map(tf.compat.as_text, op.get_attr("names"))) for op in ops if op.type == "MatexPublish"]
parts = [cut for op in ops if op.type == "MatexAnnounceUpdate" for cut in op.get_attr("cuts")]
if names:  # in the order of the forward pass, each weight awaited by its read, each gradient in parts
    groups = [names[0:2], names[2:4]]  # the last layers' weights leave first
    for (last, first), model in zip(groups, models):
        assert first + last == [one.path for one in model.trainable_variables] and first and last, names
    assert len(awaited) == 12 and len(parts) == 12 * (matex_tf.size() + 1), (awaited, parts)
print(f"{len(names)} publications", file=sys.stderr)

scaled = network()
scaled.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)), "mse")
history = scaled.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0)
found["scaled"] = np.array(history.history["loss"])
found["scaled weights"] = np.concatenate([one.ravel() for one in scaled.get_weights()])
np.savez(Path(sys.argv[1]) / f"rank-{matex_tf.rank()}.npz", **found)
