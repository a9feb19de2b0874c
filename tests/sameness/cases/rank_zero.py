"""Weights that rank 0 alone sets, loads or restores are those of every rank in the next `fit`, `evaluate` or `predict`.

Alone, this rank is rank 0.
"""

import corpus_run
import numpy as np
import tensorflow as tf

keras = tf.keras
keras.backend.set_floatx("float64")
x = np.random.default_rng(1).random((23, 3))
y = np.random.default_rng(2).random((23, 2))
results = {}


class Head(keras.Model):
    """A model whose backbone has weights before it is called."""

    def __init__(self):
        super().__init__()
        self.backbone = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(4, activation="tanh")])
        self.dense = keras.layers.Dense(2)

    def call(self, inputs):
        return self.dense(self.backbone(inputs))


def change(layer, seed):
    """On rank 0 other weights, as of a file that it loads."""
    if corpus_run.get_rank() == 0:
        generator = np.random.default_rng(seed)
        layer.set_weights([generator.random(weight.shape) + 0.5 for weight in layer.get_weights()])


def normal_model(jit=False):
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Input((3,)), keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    model.compile("adam", "mse", metrics=["mae"], jit_compile=jit)
    return model


def head():
    keras.utils.set_random_seed(3)
    model = Head()
    model.compile("sgd", "mse")
    return model


def stored(name, value):
    results[name] = np.asarray(value)


class Restore(keras.callbacks.Callback):
    """What EarlyStopping restores when training ends, on rank 0 only; it looks at the result there."""

    def on_train_end(self, logs=None):
        change(self.model, 8)
        stored("restored|predict", self.model.predict(x, batch_size=8, verbose=0))
        change(self.model, 9)
        stored("restored|evaluate", self.model.evaluate(x, y, batch_size=8, verbose=0))


def train(jit, everything):
    """The cases of a model, whose functions XLA compiles if `jit`; a few of them, or `everything`."""
    model = normal_model(jit)
    model.fit(x, y, batch_size=8, verbose=0, callbacks=[Restore()] if everything else [])
    change(model, 1)
    stored(f"evaluate {jit}", model.evaluate(x, y, batch_size=8, verbose=0))
    change(model, 2)
    stored(f"predict {jit}", model.predict(x, batch_size=8, verbose=0))
    if everything:
        change(model.layers[1], 3)  # moving statistics
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
        stored(f"predict dataset {jit}", model.predict(data, verbose=0))
        change(model.layers[1], 4)
        stored(f"evaluate dataset {jit}", model.evaluate(data, verbose=0))
    change(model, 5)
    stored(f"fit {jit}", model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"])


train(jit=False, everything=True)
train(jit=True, everything=corpus_run.is_all())

for kind in ("evaluate", "predict", "fit"):
    model = head()
    change(model.backbone, 7)
    if kind == "evaluate":
        stored("head evaluate", model.evaluate(x, y, batch_size=8, verbose=0))
    elif kind == "predict":
        stored("head predict", model.predict(x, batch_size=8, verbose=0))
    else:
        history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
        stored("head fit", history["loss"])
        stored("head weights", np.concatenate([weight.ravel() for weight in model.get_weights()]))
