"""Callbacks of every kind on every rank; `python callback_case.py FOLDER URL`. What each rank saw is stored."""

import json
import os
import sys

import numpy as np
import tensorflow as tf

keras = tf.keras
callbacks = keras.callbacks
folder, url = sys.argv[1:]
keras.backend.set_floatx("float64")
x = np.random.default_rng(1).random((40, 3))
y = x @ np.array([[1.0, 0.5], [0.2, 0.1], [0.0, 1.0]])
rank = sys.modules["matex_tf"].rank() if "matex_tf" in sys.modules else 0
seen = {}


class Watch(callbacks.Callback):
    """Keeps what a script's own callback sees."""

    def __init__(self):
        super().__init__()
        self.events = []

    def on_epoch_end(self, epoch, logs=None):
        rate = np.asarray(self.model.optimizer.learning_rate)
        self.events.append([epoch, {name: float(logs[name]) for name in sorted(logs)}, float(rate)])

    def on_train_batch_end(self, batch, logs=None):
        self.events.append([batch, float(logs["loss"])])


def trained(name, *used, epochs=6, rate=0.3, labels=y, **options):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(rate), "mse", metrics=["mae"])
    watch = Watch()
    history = model.fit(
        x, labels, batch_size=7, epochs=epochs, verbose=0, shuffle=False, callbacks=[*used, watch], **options
    )
    history = {key: [float(value) for value in values] for key, values in sorted(history.history.items())}
    seen[name] = {"history": history, "events": watch.events, "epochs": history and len(history["loss"])}
    return model


class StopOn(callbacks.Callback):
    """Stops on one rank alone, as a callback does that looks at that rank's clock."""

    def __init__(self, event):
        super().__init__()
        self.event = event

    def on_train_batch_end(self, batch, logs=None):
        self.stop("batch", batch)

    def on_epoch_end(self, epoch, logs=None):
        self.stop("epoch", epoch)

    def stop(self, event, number):
        stopping = 1 if "matex_tf" in sys.modules else 0
        if event == self.event and number == 2 and rank == stopping:
            self.model.stop_training = True


split = {"validation_split": 0.25}
trained("early", callbacks.EarlyStopping(monitor="val_loss", patience=1, min_delta=0.01), epochs=20, **split)
trained("plateau", callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=0.02), epochs=8)
trained("schedule", callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9))
trained("nan", callbacks.TerminateOnNaN(), rate=1e200)
trained("lambda", callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(twice=2 * logs["loss"])))
trained("monitor", callbacks.RemoteMonitor(root=url, path="/", send_as_json=True), epochs=2)
trained("stop in an epoch", StopOn("batch"))
trained("stop after an epoch", StopOn("epoch"))

path = keras.utils.get_file("data.npz", origin=f"{url}/data.npz", cache_dir=folder)
seen["download"] = [
    os.path.relpath(path, folder),
    np.load(path)["x"].tolist(),
    sorted(os.listdir(os.path.dirname(path))),
]
with open(os.path.join(folder, f"rank-{rank}.json"), "w") as file:
    json.dump(seen, file)
