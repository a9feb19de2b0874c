"""Trains in float64 while FOLDER/hosts gets a third place and loses it: `python changing_case.py FOLDER [EPOCHS]`.

FOLDER/result.npz gets what a person sees, the weights, and with how many ranks each step was made. A step takes the
longer the more rows a rank has, and with `servers:auto`. Without EPOCHS it ends soon after the last change. With HOST
in the environment that host comes in place of the third place. FOLDER/lost and FOLDER/back ask for its loss and return.
"""

import itertools
import os
import posix  # the ranks' own view of files leaves it alone
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

FOLDER, EPOCHS = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
STEPS, MOST = 20, 60
HOST = os.environ.get("HOST", "")
WANTED = [2, 3, 2, 3] if HOST else [2, 3, 2]
STRATEGY = os.environ.get("MATEX_STRATEGY", "")
matex_tf = sys.modules.get("matex_tf")
rank, size = (matex_tf.rank(), matex_tf.size()) if matex_tf else (0, 1)
keras.backend.set_floatx("float64")
keras.utils.set_random_seed(5)
if matex_tf:
    from matex_tf.adapt import changes

    sys.path.append(str(Path(__file__).parents[1]))
    import plans

    plans.leave_python_as_it_is()  # taking time is none of the script's
    changes.GAIN_PER_COST = 0.0  # whatever else a step takes here


class Work(keras.layers.Layer):
    """Passes its input on and takes its time for it."""

    def call(self, inputs, training=None):
        if not training or not matex_tf:
            return inputs

        def work(rows):
            time.sleep(int(rows) / (320 if STRATEGY == "servers:auto" else 500))
            return np.int64(0)

        noted = tf.numpy_function(work, [tf.raw_ops.Shape(input=inputs)[0]], tf.int64)
        with tf.control_dependencies([noted]):
            return tf.identity(inputs)


def write(name, text):
    file = posix.open(os.path.join(FOLDER, name), os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    posix.write(file, text.encode())
    posix.close(file)


class Moves(keras.callbacks.Callback):
    """Once the strategy was chosen and undone there is a third place; once that is taken, for 20 steps more."""

    def __init__(self):
        super().__init__()
        self.ranks, self.strategies = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.ranks.append(size)
        self.strategies.append(STRATEGY)
        if not matex_tf or rank:
            return
        is_undone = "servers:auto" in self.strategies and not STRATEGY
        if (is_undone or STRATEGY == "allreduce") and set(self.ranks) == {2}:
            hosts = ("h1", "h2", HOST) if HOST else ()
            write("hosts", "".join(f"{host} slots=1\n" for host in hosts) or "localhost slots=3\n")
        changes = [ranks for ranks, _ in itertools.groupby(self.ranks)]
        if changes == [2, 3] and self.ranks.count(3) >= 20:
            write("lost" if HOST else "hosts", "localhost slots=2\n")
        if changes == [2, 3, 2] and HOST:
            write("back", "")

    def on_epoch_end(self, epoch, logs=None):
        changes = [(ranks, len(list(steps))) for ranks, steps in itertools.groupby(self.ranks)]
        is_over = [ranks for ranks, _ in changes] == WANTED and changes[-1][1] >= 6
        self.model.stop_training = epoch + 1 == (EPOCHS or MOST) or (not EPOCHS and is_over)


chance = np.random.RandomState(3)
x, y = chance.rand(16 * STEPS - 5, 6), chance.randint(0, 3, 16 * STEPS - 5)
layers = [keras.layers.Dense(512, "tanh"), keras.layers.Dense(512, "tanh"), keras.layers.Dense(3)]
model = keras.Sequential([keras.Input((6,)), Work(), *layers])
model.compile(keras.optimizers.Adam(0.001), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
moves = Moves()
history = model.fit(x, y, batch_size=16, epochs=50000, verbose=0, callbacks=[moves]).history
found = {name: np.array(values) for name, values in history.items()}
found |= {f"weight {number}": weight for number, weight in enumerate(model.get_weights())}
np.savez(os.path.join(FOLDER, "result.npz"), **found, ranks=np.array(moves.ranks))
