"""Training with MATEX_SCALING=weak; alone, with batches of as many rows as RANKS of the script's.

`weak_scaling_cases.py RANKS FOLDER`: each rank stores what it found in FOLDER.
"""

import concurrent.futures
import sys

import numpy as np
import tensorflow as tf

import matex_tf

keras = tf.keras
keras.backend.set_floatx("float64")
ranks, folder = int(sys.argv[1]), sys.argv[2]
alone = matex_tf.size() == 1
generator = np.random.RandomState(0)
X = generator.rand(47, 5)
Y = X @ generator.rand(5, 1)
EACH = 6
rows = EACH * ranks if alone else EACH
found = {}


def make():
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Input((5,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def store(name, model, *numbers):
    found[name] = np.concatenate([np.ravel(np.asarray(one, np.float64)) for one in (*numbers, *model.get_weights())])


def fit(name, *data, **options):
    model = make()
    history = model.fit(*data, epochs=2, verbose=0, **options)
    store(name, model, *(history.history[key] for key in sorted(history.history)))


data = tf.data.Dataset.from_tensor_slices((X, Y))
fit("arrays", X, Y, batch_size=rows, shuffle=False, validation_data=(X[:9], Y[:9]), validation_batch_size=4)
fit("shuffled", X, Y, batch_size=rows)
fit("steps", X, Y, steps_per_epoch=4, shuffle=False)
fit("dataset", data.batch(rows), validation_data=data.batch(7))

model = make()
model.fit(matex_tf.shard(X), matex_tf.shard(Y), steps_per_epoch=4, epochs=2, verbose=0)
found["steps of own rows"] = np.asarray(int(model.optimizer.iterations))

model = make()
optimizer = keras.optimizers.SGD(0.1)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


# The first batch of a loop is the script's: that the loop trains shows only after it.
first, *others = range(0, len(X), EACH)
groups = [first, *others[::ranks], len(X)]
batches = zip(groups, groups[1:])
loop = [(X[start:end], Y[start:end]) for start, end in batches] if alone else data.batch(EACH)
store("loop", model, [float(step(x, y)) for x, y in loop])


def take_optionals(batches):
    iterator = iter(batches)
    while (batch := iterator.get_next_as_optional()).has_value():
        yield batch.get_value()


store("optionals", model, [float(step(x, y)) for x, y in (loop if alone else take_optionals(loop))])
# A loop that does not train is given the script's batches.
found["looked at"] = np.asarray([len(x) for x, _ in data.batch(EACH)])
with concurrent.futures.ThreadPoolExecutor(1) as thread:  # nor do its loops train while the main thread does
    looked = iter(data.batch(EACH))
    counts = []
    for x, y in [loop[0]] * 2 if alone else data.batch(EACH).take(2):
        counts.append(thread.submit(lambda: len(next(looked)[0])).result())
        step(x, y)
    found["looked at in a thread"] = np.asarray(counts)
np.savez(f"{folder}/{'alone' if alone else matex_tf.rank()}", **found)
