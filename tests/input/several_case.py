"""Steps that take several batches; stores their results and the number of rows that this rank has decoded for each.

Arguments: the folder of the results; "forced" if the slice ratios of the ranks differ in each step, else "equal".
"""

import itertools
import os
import sys

import keras
import numpy as np
import tensorflow as tf

folder, how = sys.argv[1:]
rank = sys.modules["matex_tf"].rank() if "matex_tf" in sys.modules else 0
if how == "forced" and "matex_tf" in sys.modules:
    from matex_tf.adapt import slice_adapter

    ratios = [(5, 1), (1, 0), (0, 1), (1, 1)], [(5, 1, 1), (1, 9, 0), (0, 1, 15), (1, 1, 1)]
    follows = itertools.cycle(ratios[sys.modules["matex_tf"].size() - 2])
    slice_adapter.override_choice(lambda *_: next(follows), steps=1)
keras.utils.set_random_seed(1)
keras.backend.set_floatx("float64")
ROWS, BATCH = 46, 8
decoded, found = [0], {}
weight = tf.Variable(tf.ones([4, 3], tf.float64))


def note(number):
    decoded[0] += 1
    return np.int64(0)


def load(number):
    number += tf.ensure_shape(tf.numpy_function(note, [number], tf.int64, stateful=False), [])
    return tf.sin(tf.range(1.0, 5.0, dtype=tf.float64) * tf.cast(number, tf.float64)), number % 3


def make(size=BATCH):
    return tf.data.Dataset.range(ROWS).shuffle(100, seed=2).map(load, tf.data.AUTOTUNE).batch(size).prefetch(2)


def make_padded():
    rows = tf.data.Dataset.range(ROWS).map(lambda number: (tf.cast(tf.range(number % 7), tf.float64), number))
    return rows.map(lambda row, number: (tf.sin(row), load(number)[1])).padded_batch(BATCH)


def step(x, y):
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ weight)
        loss = tf.reduce_mean(losses)
    weight.assign_sub(0.1 * tape.gradient(loss, weight))
    return loss


@tf.function
def loop(batches):
    total = tf.constant(0.0, tf.float64)
    for x, y in batches:
        total += step(x, y)
    return total


@tf.function
def loop_twice(batches):
    """Each loop begins a pass of its own: its rows are shuffled by the next seeds of the dataset."""
    total = tf.constant(0.0, tf.float64)
    for x, y in batches:
        total += step(x, y)
    for x, y in batches:
        total += 2.0 * step(x, y)
    return total


@tf.function
def loop_with_numbers(batches):
    total = tf.constant(0.0, tf.float64)
    for number, (x, y) in enumerate(batches):
        total += step(x, y) * tf.cast(number, tf.float64)
    return total


@tf.function
def loop_in_part(batches):
    """What is made of the dataset in the function: the batches are shared as those of the dataset are."""
    return loop(batches.skip(1).take(2).repeat(2))


@tf.function
def loop_with_two_numbers(batches):
    total = tf.constant(0.0, tf.float64)
    for number, ((x, y), other) in tf.data.Dataset.zip((batches.take(3), tf.data.Dataset.range(5, 9))).enumerate(2):
        total += step(x, y) * tf.cast(number * other, tf.float64)
    return total


@tf.function
def loop_of_two(batches):
    total = tf.constant(0.0, tf.float64)
    for (x, y), other in tf.data.Dataset.zip((batches, tf.data.Dataset.from_tensor_slices(tf.ones([9])))):
        total += step(x, y) * tf.cast(other, tf.float64)
    return total


@tf.function
def loop_of_padded(batches):
    total = tf.constant(0.0, tf.float64)
    for x, y in batches:
        width = tf.cast(tf.shape(x)[1], tf.float64)
        total += width * step(tf.reduce_sum(x, 1, keepdims=True) * tf.ones([1, 4], tf.float64), y)
    return total


@tf.function
def thrice(iterator):
    total = tf.constant(0.0, tf.float64)
    for _ in tf.range(3):
        total += step(*next(iterator))
    return total


@tf.function
def unrolled(iterator):
    return step(*next(iterator)) + step(*next(iterator))


referred = make()


@tf.function
def loop_of_referred():
    total = tf.constant(0.0, tf.float64)
    for x, y in referred:
        total += step(x, y)
    return total


@tf.function
def first_two(iterator):
    total, left = tf.constant(0.0, tf.float64), 2
    for x, y in iterator:
        total += step(x, y)
        left -= 1
        if left == 0:
            break
    return total


def fit():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, kernel_initializer="ones")])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, steps_per_execution=4)
    return [*model.fit(make(), epochs=3, verbose=0).history["loss"], model.evaluate(make(), verbose=0)]


def take_by_turns():
    """A step takes of an iterator, and so does eager code."""
    iterator = iter(make())
    return [first_two(iterator), tf.reduce_sum(next(iterator)[0]), loop(iterator)]


def give_in_part():
    data = make()
    return [loop(data), loop(data.take(2)), loop(make(1).take(3))]


CASES = {
    "fit": fit,
    "a dataset": lambda data=make(): [loop(data) for _ in range(3)],  # noqa: B008 - shuffled in another order each time
    "a dataset referred to": lambda: [loop_of_referred() for _ in range(2)],
    "an iterator": lambda: [loop(iter(make()))],
    "three steps": lambda iterator=iter(make()): [thrice(iterator), thrice(iterator)],  # noqa: B008 - goes on
    "two steps": lambda iterator=iter(make()): [unrolled(iterator) for _ in range(3)],  # noqa: B008 - goes on
    "padded": lambda data=make_padded(): [loop_of_padded(data) for _ in range(2)],  # noqa: B008 - as above
    "in part": give_in_part,
    "by turns": take_by_turns,
    "with numbers": lambda data=make(): [loop_with_numbers(data) for _ in range(2)],  # noqa: B008 - as above
    "in part, within": lambda data=make(): [loop_in_part(data), loop_with_two_numbers(data)],  # noqa: B008 - as above
    "twice": lambda data=make().repeat(2): [loop_twice(data) for _ in range(2)],  # noqa: B008 - as above
    "whole": lambda: [loop_of_two(make())],
}
for name, case in CASES.items():
    before = decoded[0]
    found[name] = np.array(case(), float)
    found[f"{name} decoded"] = decoded[0] - before
found["weight"] = weight.numpy()


def check(number):
    tf.debugging.assert_less(number, tf.constant(22, tf.int64), "a row that cannot be decoded")
    return load(number)


try:
    loop(tf.data.Dataset.range(24).map(check).batch(BATCH))
except tf.errors.InvalidArgumentError as error:
    found["error"] = np.array("a row that cannot be decoded" in str(error))
np.savez(os.path.join(folder, f"rank-{rank}.npz"), **found)
