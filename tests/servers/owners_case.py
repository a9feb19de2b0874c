"""Trains the same model with the strategies named, and stores its variables and metrics.

Arguments: the folder, and the strategies after "allreduce".
"""

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import matex_tf
from matex_tf import settings
from matex_tf.runtime import objects
from matex_tf.servers.pieces import owners
from matex_tf.steps import slices
from matex_tf.world import world

keras.backend.set_floatx("float64")
x = np.random.default_rng(0).normal(size=(38, 6))


def held(optimizer):
    """The number of entries of slots on this rank; checks that slots are in pieces."""
    slots = [one.value for one in optimizer.variables if hasattr(one.value, "piece")]
    assert all(one.is_in_pieces() for one in slots) or settings.get_settings().strategy == "servers:auto"
    return sum(one.piece.numpy().size for one in slots)


def count_rows(total):
    """The number of rows of a batch that this rank contributes."""
    share = slices.make_slice_of_rows(tf.constant(total, tf.int64))
    return int(share.count) if share.contributes else 0


found = {}
folder, *strategies = sys.argv[1:]
for strategy in ("allreduce", *strategies):
    settings.get_settings().strategy = strategy  # as if the environment said so
    world.get_world().servers = settings.count_only_serving(strategy)
    owners.report_owners()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(64, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse")
    model.optimizer.build(model.trainable_variables)
    found[f"{strategy}|made"] = np.array(objects.allgather(held(model.optimizer), "what a rank has before a step"))
    history = model.fit(x, x[:, :1], batch_size=9, epochs=2, verbose=0).history["loss"]
    found[f"{strategy}|rows"] = np.array(objects.allgather([count_rows(9), count_rows(2)], "rows"))
    found[f"{strategy}|held"] = np.array(objects.allgather(held(model.optimizer), "what a rank holds"))
    values = [np.asarray(one) for one in (*model.get_weights(), *model.optimizer.variables, history)]
    found[f"{strategy}|values"] = np.concatenate([value.ravel() for value in values])
    if strategy == "allreduce" or strategy.endswith(":only"):
        figures = [np.asarray(model.evaluate(x, x[:, :1], verbose=0)), model.predict(x, verbose=0)]
        found[f"{strategy}|figures"] = np.concatenate([one.ravel() for one in figures])
if matex_tf.rank() == 0:
    np.savez(Path(folder) / "found.npz", **found)
