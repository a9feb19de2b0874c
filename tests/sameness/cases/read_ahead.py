"""Epochs over a part of what a source gives have the batches that they have alone, in `fit` and in its validation.

The target of batch i is 4 ** i, and the loss its mean: so a loss tells which batches were in it, and how often.
"""

import itertools

import corpus_run
import numpy as np
import tensorflow as tf

keras = tf.keras
LEGACY = not hasattr(keras.utils, "PyDataset")  # Keras 2
BATCHES, ROWS, EPOCHS = 9, 4, 4
SPEC = (tf.TensorSpec([None, 1], tf.float64), tf.TensorSpec([None, 1], tf.float64))


def make_batch(number):
    return np.full((ROWS, 1), float(number)), np.full((ROWS, 1), 4.0**number)


def generate():
    for number in itertools.count():
        yield make_batch(number % BATCHES)


class Parts(keras.utils.Sequence if LEGACY else keras.utils.PyDataset):
    def __init__(self, **options):
        if not LEGACY:
            super().__init__(**options)

    def __len__(self):
        return BATCHES

    def __getitem__(self, number):
        return make_batch(number)


class Endless(Parts):
    __len__ = None
    num_batches = None

    def __getitem__(self, number):
        return make_batch(number % BATCHES)


def read_on():
    """A dataset that goes on where the last iteration has stopped reading."""
    source = generate()
    return tf.data.Dataset.from_generator(lambda: source, output_signature=SPEC)


def from_function():
    return tf.data.Dataset.from_generator(lambda: map(make_batch, range(BATCHES)), output_signature=SPEC)


workers = {"workers": 2}
processes = {"workers": 2, "use_multiprocessing": True}
sources = {
    "generator": (generate, {}),
    "dataset of a function": (from_function, {}),
    "dataset that reads on": (read_on, {}),
    "dataset that reads on, 2 ahead": (lambda: read_on().prefetch(2), {}),
    "parts": (Parts, {}),
    "parts by 2 workers": (Parts, workers) if LEGACY else (lambda: Parts(**workers), {}),
    "parts by 2 processes": (Parts, processes) if LEGACY else (lambda: Parts(**processes), {}),
}
if not LEGACY:
    sources["endless parts"] = (Endless, {})
    sources["endless parts by 2 workers"] = (lambda: Endless(**workers), {})

keras.backend.set_floatx("float64")
model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.0), lambda y, p: tf.reduce_mean(y + 0 * p, -1))
quiet = {"epochs": EPOCHS, "verbose": 0}
x = np.zeros((4, 1))
results = {}
for name, (make, options) in sources.items():
    trained = model.fit(make(), steps_per_epoch=2, shuffle=False, **quiet, **options)
    results[f"train {name}"] = np.array(trained.history["loss"]) * 2
    validated = model.fit(x, x, validation_data=make(), validation_steps=3, **quiet, **options)
    results[f"validate {name}"] = np.array(validated.history["val_loss"]) * 3


def of_batches(*epochs):
    """The losses of epochs with these batches."""
    return np.array([sum(4.0**number for number in epoch) for epoch in epochs])


# How far the script alone reads ahead of these is a matter of time; most often that far. Keras 3 gives the first two
# batches of a generator, at which it has looked, again in each validation.
two_ahead = of_batches((0, 1, 2), (5, 6, 7), (1, 2, 3), (6, 7, 8))
results_most_often = {
    "validate dataset that reads on": of_batches((0, 1, 2), (4, 5, 6), (8, 0, 1), (3, 4, 5)),
    "validate dataset that reads on, 2 ahead": two_ahead,
    "validate generator": two_ahead if LEGACY else of_batches((0, 1, 2), (0, 1, 4), (0, 1, 6), (0, 1, 8)),
}
for name, losses in results_most_often.items():
    corpus_run.expect(np.allclose(results.pop(name), losses, 1e-10), f"{name}: other batches")
corpus_run.expect(not any("different rows" in note for note in corpus_run.list_notes()), "ranks read different rows")
