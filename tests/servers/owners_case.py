"""The same model is trained with several strategies; what it becomes is stored. Argument: the folder."""

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import matex_tf
from matex_tf import settings
from matex_tf.runtime import objects
from matex_tf.servers.pieces import owners, sharded_slots
from matex_tf.servers.variable_swap import find_handle, find_inner
from matex_tf.sharding import step_weight
from matex_tf.world import world

keras.backend.set_floatx("float64")
x = np.random.default_rng(0).normal(size=(38, 6))


def held(optimizer):
    """The entries of slots that this rank has, none of them whole."""
    slots = [pair for part in sharded_slots.find_parts(optimizer).values() for pair in part.slots]
    variables = [one for whole, piece in slots for one in (find_inner(whole), piece)]
    return sum(tf.raw_ops.ReadVariableOp(resource=find_handle(one), dtype=one.dtype).numpy().size for one in variables)


class Rows(keras.callbacks.Callback):
    """Notes how many rows of each batch count here."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        mine, _, _, of_rows = step_weight.read_values()
        self.seen.append(round(mine * of_rows))


found = {}
for strategy in ("allreduce", "servers:2", "servers:auto", "servers:1:only", "servers:2:only"):
    settings.get_settings().strategy = strategy  # as if the environment said so
    world.get_world().servers = settings.count_only_serving(strategy)
    owners.say_owners()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(64, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse")
    rows = Rows()
    history = model.fit(x, x[:, :1], batch_size=9, epochs=2, verbose=0, callbacks=[rows]).history["loss"]
    found[f"{strategy}|rows"] = np.array(objects.allgather(rows.seen, "rows"))
    found[f"{strategy}|held"] = np.array(objects.allgather(held(model.optimizer), "what a rank holds"))
    figures = [history, model.evaluate(x, x[:, :1], verbose=0), model.predict(x, verbose=0)]
    values = [np.asarray(one) for one in (*model.get_weights(), *model.optimizer.variables, *figures)]
    found[f"{strategy}|values"] = np.concatenate([value.ravel() for value in values])
if matex_tf.rank() == 0:
    np.savez(Path(sys.argv[1]) / "found.npz", **found)
