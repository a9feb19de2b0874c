"""Files that a script saves are written once, are there for every rank, and load without a trace of us."""

import launch

SCRIPT = """
import os
import sys
import keras
import numpy as np
import tensorflow as tf

out = sys.argv[1]
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
model.compile("adam", "mse")
checkpoint = keras.callbacks.ModelCheckpoint(out + "/epoch{epoch}.keras")
model.fit(np.ones((16, 3)), np.ones((16, 2)), epochs=2, verbose=0, callbacks=[checkpoint])
model.save(f"{out}/model.keras")
model.save(f"{out}/model.h5")
model.save_weights(f"{out}/model.weights.h5")
tf.saved_model.save(tf.Module(), f"{out}/module")
manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), f"{out}/checkpoints", max_to_keep=2)
assert manager.save() == f"{out}/checkpoints/ckpt-1"
for name in ("model.keras", "model.h5"):
    loaded = keras.models.load_model(f"{out}/{name}", compile=False)
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), loaded.get_weights())), name
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    variable = tf.compat.v1.get_variable("v", initializer=1.0)
    session.run(variable.initializer)
    assert tf.compat.v1.train.Saver().save(session, f"{out}/v1/model", global_step=np.int64(3)) == f"{out}/v1/model-3"
"""
LOAD = """
import sys
import keras
assert "matex_tf" not in sys.modules
keras.models.load_model(sys.argv[1] + "/model.keras").summary()
"""


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_what_is_saved_under_ranks_is_what_is_saved_alone(tmp_path):
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    launch.run_alone(SCRIPT, alone).check()
    launch.run(3, SCRIPT, together).check()
    assert files(together) == files(alone)
    launch.run_alone(LOAD, together).check()
