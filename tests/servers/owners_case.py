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

x = np.random.default_rng(0).normal(size=(36, 6)).astype("float32")


def held(optimizer):
    """The entries of slots that this rank has, none of them whole."""
    slots = [pair for part in sharded_slots.find_parts(optimizer).values() for pair in part.slots]
    variables = [one for whole, piece in slots for one in (find_inner(whole), piece)]
    return sum(tf.raw_ops.ReadVariableOp(resource=find_handle(one), dtype=one.dtype).numpy().size for one in variables)


found = {}
for strategy in ("allreduce", "servers:2", "servers:auto"):
    settings.get_settings().strategy = strategy  # as if the environment said so
    owners.say_owners()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(64, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse")
    model.fit(x, x[:, :1], batch_size=9, epochs=2, verbose=0)
    found[f"{strategy}|held"] = np.array(objects.allgather(held(model.optimizer), "what a rank holds"))
    values = [np.asarray(one) for one in (*model.get_weights(), *model.optimizer.variables)]
    found[f"{strategy}|values"] = np.concatenate([value.ravel() for value in values])
if matex_tf.rank() == 0:
    np.savez(Path(sys.argv[1]) / "found.npz", **found)
