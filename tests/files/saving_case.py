"""Saves in every way that scripts have and looks at what is there right after; `python saving_case.py FOLDER`.

Every rank asserts. What it saves must be the same set of files as that of the script alone.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import h5py
import numpy as np
import tensorflow as tf

keras = tf.keras
is_keras_3 = hasattr(keras, "ops")
rank = sys.modules["matex_tf"].rank() if "matex_tf" in sys.modules else 0
os.chdir(sys.argv[1])
keras.utils.set_random_seed(1)
x, y = np.random.rand(20, 3), np.random.rand(20, 2)


def made():
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    return model


def same(one, other):
    assert all(np.array_equal(a, b) for a, b in zip(one.get_weights(), other.get_weights(), strict=True))


model = made()
model.fit(x, y, batch_size=7, verbose=0)

# Into a folder that the script empties first.
for _ in range(2):
    if os.path.exists("out"):
        shutil.rmtree("out")
    os.makedirs("out")
    model.save("out/model.keras")
    model.save("out/model.h5")
    model.save_weights("out/model.weights.h5")
    for name in ("out/model.keras", "out/model.h5"):
        same(model, keras.models.load_model(name, compile=False))
    other = made()
    other.load_weights("out/model.weights.h5")
    same(model, other)
    assert sorted(os.listdir("out")) == ["model.h5", "model.keras", "model.weights.h5"]
    listed = subprocess.run(["ls", "out", "out/model.keras"], stdout=subprocess.PIPE, check=True, text=True).stdout
    assert listed == "out/model.keras\n\nout:\nmodel.h5\nmodel.keras\nmodel.weights.h5\n"
    model.fit(x, y, verbose=0)

# Over what is there once the user says so, who is asked by one rank.
asked = []


def answer(path):
    asked.append(path)
    return len(asked) > 1


package = type(model).__module__.partition(".")[0]
sys.modules[f"{package}.src.utils.io_utils"].ask_to_proceed_with_overwrite = answer
for saved in (other, model):
    model.save("out/model.keras", overwrite=False)
    same(saved, keras.models.load_model("out/model.keras", compile=False))
assert len(asked) == (0 if rank else 2)
model.save("out/deep/new.h5", overwrite=False)
same(model, keras.models.load_model("out/deep/new.h5", compile=False))
shutil.rmtree("out/deep")
assert len(asked) == (0 if rank else 2)

os.remove("out/model.h5")
assert not os.path.exists("out/model.h5")
model.save("out/model.h5")
assert os.path.getsize("out/model.h5") > 1000

# Removed as soon as it is read, by a rank that is ahead of the others.
for _ in range(2):
    model.save("out/once.h5")
    if rank:
        time.sleep(0.5)
    same(model, keras.models.load_model("out/once.h5", compile=False))
    os.remove("out/once.h5")

# Into a temporary folder, and to a path of each rank's own.
with tempfile.TemporaryDirectory() as temporary:
    model.save(os.path.join(temporary, "model.keras"))
    same(model, keras.models.load_model(os.path.join(temporary, "model.keras"), compile=False))
    module = tf.Module()
    module.w = tf.Variable(3.0)
    module.times = tf.function(lambda a: a * module.w, input_signature=[tf.TensorSpec([], tf.float32)])
    tf.saved_model.save(module, os.path.join(temporary, "saved"))
    found = tf.saved_model.load(os.path.join(temporary, "saved"))
    assert float(found.times(2.0)) == 6
    path = tf.train.Checkpoint(model=model).save(os.path.join(temporary, "checkpoint"))
    assert path == os.path.join(temporary, "checkpoint-1")
    tf.train.Checkpoint(model=other).restore(path).expect_partial()
    assert tf.train.latest_checkpoint(temporary) == path
model.save(f"out/of-rank-{rank}.keras")
same(model, keras.models.load_model(f"out/of-rank-{rank}.keras", compile=False))
os.mkdir("runs")
path = tf.train.Checkpoint(model=model).write(f"runs/checkpoint-of-rank-{rank}")
assert os.path.exists(f"{path}.index")

tf.saved_model.save(module, "out/module")
found = tf.saved_model.load("out/module")
assert float(found.times(2.0)) == 6

# What cannot be saved is the same error everywhere, and the script goes on.
with open("out/a-file", "w"):
    pass
try:
    model.save("out/a-file/model.keras")
    raise AssertionError("saved into a file")
except OSError:
    pass

# The error of rank 0 is the error of every rank.
if is_keras_3:
    try:
        model.save("out/model.unknown")
        raise AssertionError("saved in a format that Keras does not know")
    except ValueError:
        pass

# An open file is each rank's own.
if is_keras_3:
    with h5py.File("in-memory.h5", "w", driver="core", backing_store=False) as file:
        from keras.src.legacy.saving import legacy_h5_format

        legacy_h5_format.save_model_to_hdf5(model, file)
        assert "model_weights" in file
    model.export("out/exported", verbose=False)
    found = tf.saved_model.load("out/exported")
    assert np.allclose(found.serve(x.astype("float32")), model(x), atol=1e-6)

# Checkpoints: counters, the manager's lists, what is removed.
checkpoint = tf.train.Checkpoint(model=model, step=tf.Variable(0))
manager = tf.train.CheckpointManager(checkpoint, "out/manager", max_to_keep=2)
assert manager.restore_or_initialize() is None
for number in (1, 2, 3):
    checkpoint.step.assign_add(1)
    assert manager.save() == f"out/manager/ckpt-{number}"
    assert manager.latest_checkpoint == f"out/manager/ckpt-{number}"
assert int(checkpoint.save_counter) == 3
assert manager.checkpoints == ["out/manager/ckpt-2", "out/manager/ckpt-3"]
assert tf.train.latest_checkpoint("out/manager") == "out/manager/ckpt-3"
assert sorted(os.listdir("out/manager")) == [
    "checkpoint",
    *(f"ckpt-{number}.{part}" for number in (2, 3) for part in ("data-00000-of-00001", "index")),
]
again = tf.train.Checkpoint(model=made(), step=tf.Variable(0))
fresh = tf.train.CheckpointManager(again, "out/manager", max_to_keep=2)
assert fresh.checkpoints == manager.checkpoints
again.restore(fresh.latest_checkpoint)
same(model, again.model)
assert int(again.step) == 3
assert tf.train.load_checkpoint("out/manager").has_tensor("step/.ATTRIBUTES/VARIABLE_VALUE")
assert checkpoint.write("out/written") == "out/written"
checkpoint.read("out/written").assert_consumed()

# v1.
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    variable = tf.compat.v1.get_variable("v", initializer=1.0)
    step = tf.compat.v1.train.get_or_create_global_step()
    session.run(tf.compat.v1.global_variables_initializer())
    saver = tf.compat.v1.train.Saver(max_to_keep=2)
    for number in (3, 4, 5):
        session.run(variable.assign(number))
        assert saver.save(session, "out/v1/model", global_step=np.int64(number)) == f"out/v1/model-{number}"
    assert saver.last_checkpoints == ["out/v1/model-4", "out/v1/model-5"]
    assert tf.train.latest_checkpoint("out/v1") == "out/v1/model-5"
    session.run(variable.assign(0))
    saver.restore(session, tf.train.latest_checkpoint("out/v1"))
    assert session.run(variable) == 5
    saver.save(session, "out/v1/same")

# A relative path, in a folder that a rank makes and goes into before rank 0 has made it.
if rank == 0:
    time.sleep(1)
os.mkdir("run")
os.chdir("run")
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    variable = tf.compat.v1.get_variable("v", initializer=1.0)
    session.run(variable.initializer)
    saver = tf.compat.v1.train.Saver()
    saver.restore(session, saver.save(session, "./model"))
    assert session.run(variable) == 1
assert os.path.basename(os.getcwd()) == "run"
os.chdir("..")
with tf.Graph().as_default():
    step = tf.compat.v1.train.get_or_create_global_step()
    more = step.assign_add(1)
    with tf.compat.v1.train.MonitoredTrainingSession(
        checkpoint_dir="out/monitored", save_checkpoint_steps=2, save_checkpoint_secs=None, log_step_count_steps=None
    ) as session:
        for _ in range(4):
            session.run(more)

# Callbacks that write.
callbacks = keras.callbacks
backup = callbacks.BackupAndRestore("out/backup")
model.fit(
    x, y, batch_size=7, epochs=3, verbose=0, validation_split=0.2,
    callbacks=[
        callbacks.ModelCheckpoint("out/epochs/{epoch}.keras"),
        callbacks.ModelCheckpoint("out/best.keras", save_best_only=True, monitor="val_loss"),
        callbacks.ModelCheckpoint("out/batches/{epoch}.weights.h5", save_weights_only=True, save_freq=2),
        callbacks.CSVLogger("out/log.csv"),
        backup,
    ],
)  # fmt: skip
assert not os.path.exists("out/backup/latest.weights.h5")
assert len(pathlib.Path("out/log.csv").read_text().splitlines()) == 4
made().fit(x, y, batch_size=7, epochs=2, verbose=0, callbacks=[callbacks.CSVLogger("out/log.csv", append=True)])
assert len(pathlib.Path("out/log.csv").read_text().splitlines()) == 6
print("saved")
