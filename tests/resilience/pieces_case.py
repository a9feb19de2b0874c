"""`python pieces_case.py` trains in pieces, and kills ranks of four where copies of pieces are exchanged.

Rank 1 is lost before it sends a copy, rank 3 while the others restore the piece of rank 1, rank 2 once it has sent one.
"""

import json
import os
import signal
import sys

import keras
import numpy as np

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(5)
rng = np.random.default_rng(0)
x = rng.normal(size=(96, 6))
y = x @ rng.normal(size=(6, 1))
steps = 0


class Count(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        global steps
        steps += 1


def kill_after(name, step, before=False):
    """Kill this rank after, or before, the call of a function in that step."""
    plain = getattr(piece_copies, name)

    def killed(*args):
        is_time = steps == step
        result = None if is_time and before else plain(*args)
        if is_time:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(piece_copies, name, killed)


if "matex_tf" in sys.modules:
    import matex_tf
    from matex_tf.servers.pieces import piece_copies

    moments = {1: ("send_copies", 5, True), 3: ("restore_lost", 5), 2: ("send_copies", 9)}
    if matex_tf.rank() in moments:
        kill_after(*moments[matex_tf.rank()])
layers = [keras.layers.Dense(24, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
model = keras.Sequential([keras.Input((6,)), *layers])
model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
history = model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[Count()], validation_data=(x, y)).history
variables = [float(np.abs(np.asarray(one)).sum()) for one in model.optimizer.variables]
print("SHOW" + json.dumps(["trained", [history, float(np.abs(model.get_weights()[0]).sum()), variables]]), flush=True)
