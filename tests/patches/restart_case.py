"""Training that saves as it goes and is killed; started again it goes on. `python restart_case.py FOLDER STYLE [KILL]`.

KILL is the epoch at whose start rank 0's process is killed. The losses of the epochs of this run are printed.
"""

import json
import os
import signal
import sys

import numpy as np
import tensorflow as tf

keras = tf.keras
folder, style = sys.argv[1:3]
kill = int(sys.argv[3]) if len(sys.argv) > 3 else None
keras.backend.set_floatx("float64")
keras.utils.set_random_seed(4)
x = np.random.default_rng(1).random((41, 3))
y = x @ np.array([[1.0], [0.2], [0.7]])
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(0.05)
losses = {}


def begin(epoch, logs=None):
    rank = sys.modules["matex_tf"].rank() if "matex_tf" in sys.modules else 0
    if epoch == kill and rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)


if style == "fit":
    model.compile(optimizer, "mse")
    keep = keras.callbacks.LambdaCallback(
        on_epoch_begin=begin, on_epoch_end=lambda epoch, logs: losses.update({epoch: float(logs["loss"])})
    )
    backup = keras.callbacks.BackupAndRestore(os.path.join(folder, "backup"))
    model.fit(x, y, batch_size=8, epochs=6, shuffle=False, verbose=0, callbacks=[backup, keep])
else:
    done = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, done=done)
    manager = tf.train.CheckpointManager(checkpoint, os.path.join(folder, "checkpoints"), max_to_keep=2)
    checkpoint.restore(manager.latest_checkpoint)
    for epoch in range(int(done), 6):
        begin(epoch)
        mean = keras.metrics.Mean()
        for a, b in tf.data.Dataset.from_tensor_slices((x, y)).batch(8):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(a) - b) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            mean.update_state(loss)
        losses[epoch] = float(mean.result())
        done.assign_add(1)
        manager.save()
print("LOSSES" + json.dumps(losses))
