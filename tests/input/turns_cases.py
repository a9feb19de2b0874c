"""`fit`, `evaluate` and `predict` on `PyDataset`s of many kinds. `python turns_cases.py FOLDER` stores what they give.

A name that ends with "|made" is the number of items that the rank has made, and with "|gathered" the number of items so
far of which all ranks have gathered something. Ranks always take turns where they may, however long it takes to send
rows.
"""

import functools
import itertools
import random
import sys
import types
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from matex_tf.input import passes

passes._MEASURED_ITEMS = float("inf")
rank = sys.modules["matex_tf"].rank() if "mpi4py" in sys.modules else 0
keras.backend.set_floatx("float64")
ITEMS, EPOCHS = 23, 2
results = {}
made = {}
numbers = itertools.count()
gathered = []
gather = passes.objects.allgather


def note_gathered(value, what, *rows, **options):
    if what == passes.NEXT:
        gathered.append(value)
    return gather(value, what, *rows, **options)


passes.objects.allgather = note_gathered
hidden = types.ModuleType("hidden")
hidden.generator = np.random.default_rng(9)


class Items(keras.utils.PyDataset):
    """Its order is new in each epoch; its items have six rows, but one and the last."""

    def __init__(self, seed=0, **options):
        super().__init__(**options)
        self.seed, self.order, self.counter = seed, np.arange(ITEMS), f"counter {next(numbers)}"
        made[self.counter] = 0

    @property
    def made(self):
        return made[self.counter]

    def __len__(self):
        return ITEMS

    def __getitem__(self, number):
        made[self.counter] += 1  # which is no part of the object
        generator = np.random.default_rng([self.seed, int(self.order[number])])
        rows = generator.normal(size=({3: 1, ITEMS - 1: 5}.get(number, 6), 4))
        return self.change(rows, rows[:, :1] * 2 + 1)

    def change(self, x, y):
        return x, y

    def on_epoch_end(self):
        self.order = np.random.default_rng(self.order).permutation(ITEMS)


class Structured(Items):
    def change(self, x, y):
        words = tf.constant([[b"a" * (1 + int(abs(one) * 9))] for one in x[:, 0]])
        return {"rows": x, "words": words}, y, np.abs(x[:, 1])


class Classes(Items):
    def change(self, x, y):
        return x, (y > 1).astype("int64")[:, 0]


class DrawsGlobally(Items):
    def change(self, x, y):
        return x + np.random.normal(size=x.shape), y


class DrawsSometimes(Items):
    """By a generator of its own, of which little is seen."""

    def __init__(self, **options):
        super().__init__(**options)
        self.generators = [np.random.default_rng(1)]

    def change(self, x, y):
        return (-x if self.generators[0].random() < 0.1 else x), y


class DrawsElsewhere(Items):
    def change(self, x, y):
        return x + hidden.generator.normal(size=x.shape), y


class Counts(Items):
    def change(self, x, y):
        return x + self.made, y


class Remembers(Items):
    """The order of an epoch follows from what this object has made."""

    def on_epoch_end(self):
        self.order = np.random.default_rng(self.made).permutation(ITEMS)


class Notes(Items):
    """What was made decides upon the order of an epoch; it is noted in the object."""

    def __init__(self, **options):
        super().__init__(**options)
        self.noted = []

    def __getitem__(self, number):
        self.noted.append(number)
        return super().__getitem__(number)

    def on_epoch_end(self):
        self.order = np.random.default_rng(len(self.noted)).permutation(ITEMS)


class Fails(Items):
    def __getitem__(self, number):
        if number == 9:
            raise FileNotFoundError(f"no file of item {number}")
        return super().__getitem__(number)


class DrawsOnOneRank(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if rank == 1:
            random.random()


class Words(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        lengths = tf.cast(tf.strings.length(inputs["words"]), tf.float64)
        return self.dense(tf.concat([inputs["rows"], lengths], 1))


def network(classes=False):
    keras.utils.set_random_seed(1)
    last = keras.layers.Dense(2) if classes else keras.layers.Dense(1)
    return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, "tanh"), last])


@functools.cache
def common_network():
    """The network of most cases, whose step is traced once; its variables with their first values."""
    model = network()
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model.optimizer.build(model.trainable_variables)
    return model, [(variable, variable.numpy()) for variable in (*model.weights, *model.optimizer.variables)]


def start_again():
    keras.utils.set_random_seed(1)
    model, values = common_network()
    for variable, value in values:
        variable.assign(value)
    return model


def train(name, source, model=None, validation=None, compiled=None, **options):
    if model or compiled:
        model = model or network()
        model.compile(keras.optimizers.Adam(0.01), **{"loss": "mse", **(compiled or {})})
    else:
        model = start_again()
    history = model.fit(source, validation_data=validation, epochs=EPOCHS, verbose=0, **options).history
    for key, values in history.items():
        results[f"{name}|{key}"] = np.array(values)
    for number, weight in enumerate(model.get_weights()):
        results[f"{name}|weight {number}"] = weight
    results[f"{name}|made"] = np.array(source.made)
    results[f"{name}|drawn"] = np.random.random(3)
    return model


plain, tested = Items(), Items(7)
model = train("plain", plain, validation=tested)
results["plain|evaluated"] = np.array(model.evaluate(tested, verbose=0))
results["plain|predicted"] = model.predict(tested, verbose=0)
results["plain|order"] = plain.order
results["tested|made"] = np.array(tested.made)
results["tested|gathered"] = np.array(len(gathered))
train("ordered", Items(), callbacks=[DrawsOnOneRank()])
train("threads", Items(workers=2), shuffle=False)
train("processes", Items(workers=2, use_multiprocessing=True))
train("structured", Structured(), Words())
crossed = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
train("classes", Classes(), network(True), compiled={"loss": crossed}, class_weight={0: 1.0, 1: 3.0})
try:
    train("fails", Fails())
except tf.errors.OpError as error:
    results["fails|code"] = np.array(error.error_code)
    results["told|text"] = np.array(error.message)
train("draws globally", DrawsGlobally())
train("draws sometimes", DrawsSometimes())
train("draws elsewhere", DrawsElsewhere())
train("counts", Counts())
train("notes", Notes())
train("two steps at once", Items(), compiled={"steps_per_execution": 2})
train("eager", Items(), compiled={"run_eagerly": True})
start_again().fit(Remembers(), epochs=2, verbose=0)

np.savez(Path(sys.argv[1], f"rank-{rank}.npz"), **results)
