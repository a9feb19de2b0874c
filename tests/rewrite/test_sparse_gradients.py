"""Gradients of embeddings: rows with numbers, and updates of the rows that were looked up."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest
import tensorflow as tf
from simulated_ranks import Simulation, find_difference

L, optimizers = keras.layers, keras.optimizers
SPLITS = ((6, 5), (5, 0, 6))
_random = np.random.default_rng(3)
WORDS, Y = _random.integers(0, 12, [11, 7]), _random.normal(size=[11, 2])
MORE = _random.integers(0, 12, [11, 3])


pytestmark = pytest.mark.usefixtures("float64")


def _compare(simulation, steps=2, tolerance=1e-10):
    expected = simulation.run_alone(steps)
    for counts in SPLITS:
        for rank, given in enumerate(simulation.run(counts, steps)):
            assert not find_difference(expected, given, tolerance), f"rank {rank}, {counts} rows"


OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.1), "momentum": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optimizers.Adam(0.01), "clipped": lambda: optimizers.Adam(0.01, clipnorm=0.1, amsgrad=True),
    "globally clipped": lambda: optimizers.AdamW(0.01, global_clipnorm=0.1, weight_decay=0.01, use_ema=True),
    "clipped values": lambda: optimizers.SGD(0.1, clipvalue=1e-3), "adagrad": lambda: optimizers.Adagrad(0.1),
    "rmsprop": lambda: optimizers.RMSprop(0.01, momentum=0.5, centered=True), "ftrl": lambda: optimizers.Ftrl(0.1),
    "adadelta": lambda: optimizers.Adadelta(0.1),
    "accumulating": lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2),
}  # fmt: skip
OFTEN = ("momentum", "globally clipped", "adagrad", "accumulating")


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.more) for name in OPTIMIZERS]
)
def test_every_optimizer_updates_as_alone(name):
    model = keras.Sequential([L.Input([7]), L.Embedding(12, 4), L.Flatten(), L.Dense(2)])
    model.compile(OPTIMIZERS[name](), "mse", jit_compile=False)
    model._symbolic_build(data_batch=(tf.constant(WORDS), tf.constant(Y)))
    _compare(Simulation(lambda x, y: model.train_step((x, y)), [WORDS, Y]), 3, 1e-9)


def _make_table(rows=12):
    return tf.Variable(_random.normal(size=[rows, 2]))


def _look_up_twice():
    """One table, two lookups of different lengths, a dense use beside them; `tf.compat.v1`'s optimizers."""
    table, optimizer = _make_table(), tf.compat.v1.train.AdagradOptimizer(0.1)
    optimizer.apply_gradients([(tf.IndexedSlices(tf.zeros([1, 2], tf.float64), [0], [12, 2]), table)])

    def step(words, more, y):
        with tf.GradientTape() as tape:
            made = tf.reduce_sum(tf.nn.embedding_lookup(table, words), 1) * tf.reduce_mean(tf.gather(table, more), 1)
            loss = tf.reduce_mean(tf.square(made - y))
        gradient = tape.gradient(loss, table)
        optimizer.apply_gradients([(gradient, table)])
        return loss, gradient.values, gradient.indices, optimizer.get_slot(table, "accumulator").read_value()

    return Simulation(step, [WORDS, MORE, Y])


def _update_rows():
    """Ops on rows of variables as scripts call them."""
    table, slot, linear = (_make_table() for _ in range(3))
    slot.assign(tf.abs(slot) + 1.0)
    linear.assign(slot)

    def step(words, y):
        ids, place = tf.unique(words[:, 0])
        sums = tf.math.unsorted_segment_sum(y, place, tf.shape(ids)[0])
        handle, kept = table.handle, slot.handle
        rate, half, none = (tf.constant(one, tf.float64) for one in (0.1, 0.5, 0.0))
        shared = {"var": handle, "accum": kept, "lr": rate, "grad": sums, "indices": ids}
        tf.raw_ops.ResourceSparseApplyAdagrad(**shared)
        tf.raw_ops.ResourceSparseApplyMomentum(**shared, momentum=half)
        tf.raw_ops.ResourceSparseApplyFtrl(**shared, linear=linear.handle, l1=none, l2=none, lr_power=-half)
        table.scatter_add(tf.IndexedSlices(y, words[:, 1]))
        table.scatter_min(tf.IndexedSlices(y, words[:, 2]))
        table.batch_scatter_update(tf.IndexedSlices(sums * 0.1, ids))
        counts = tf.math.unsorted_segment_sum(tf.ones_like(words), words, 12)
        means = tf.math.unsorted_segment_mean(y, words[:, 0], 12), tf.math.unsorted_segment_max(y, words[:, 0], 12)
        kept = [one.read_value() for one in (table, slot, linear)]
        return kept, ids, sums, counts, means, tf.unique_with_counts(tf.reshape(words, [-1]))

    return Simulation(step, [WORDS, Y])


def _look_up_bags():
    """Bags of words: a sum, a mean and a root for each row, of a sparse tensor that is made of the batch."""
    table = _make_table()

    def step(words, y):
        with tf.GradientTape() as tape:
            bags = tf.sparse.from_dense(words)
            made = [tf.nn.embedding_lookup_sparse(table, bags, None, combiner=how) for how in ("sum", "mean", "sqrtn")]
            loss = tf.reduce_mean(tf.square(tf.add_n(made) - y))
        gradient = tape.gradient(loss, table)
        table.scatter_sub(tf.IndexedSlices(gradient.values * 0.1, gradient.indices))
        return loss, made

    words = WORDS.copy()
    words[-1] = 1  # else the last bag may be empty, and there is one less
    return Simulation(step, [words, Y])


@pytest.mark.parametrize("make", [_look_up_twice, _update_rows, _look_up_bags], ids=lambda make: make.__name__[1:])
def test_ranks_update_rows_as_the_step_alone(make):
    _compare(make())


def _make_embedding(length, rows):
    """32 rows of 20 words of 50,000: the step as Keras' Adam updates, which adds up all rows of the table."""
    table, moment = (tf.Variable(np.zeros([50_000, 64], np.float32)) for _ in range(2))
    words = _random.integers(0, 50_000, [32, 20])

    @tf.function(input_signature=[tf.TensorSpec([None, length], tf.int64)], autograph=False)
    def step(words):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.reduce_sum(tf.gather(table, words) + 1.0, -1))
        gradient = tape.gradient(loss, table)
        moment.assign(moment * 0.9 + tf.convert_to_tensor(gradient))
        table.scatter_sub(gradient)
        return loss

    return Simulation(step, [words], rows=rows)


@pytest.mark.parametrize("length", [20, None])
def test_a_large_embedding_travels_as_the_rows_that_were_looked_up(length):
    simulation = _make_embedding(length, 32)
    _compare_of_32(simulation)
    assert simulation.bytes <= 2 * 17 * 20 * (64 * 4 + 8) + 64


def test_what_turns_of_a_loop_look_up_travels_once():
    table = tf.Variable(_random.normal(size=[1000, 2]))

    @tf.function
    def step(words):
        with tf.GradientTape() as tape:
            loss = tf.constant(0.0, tf.float64)
            for turn in tf.range(7):
                loss += tf.reduce_mean(tf.square(tf.gather(table.read_value(), words[:, turn])))
        table.assign_sub(0.1 * tf.convert_to_tensor(tape.gradient(loss, table)))
        return loss

    simulation = Simulation(step, [WORDS])
    _compare(simulation)
    assert simulation.waves == 1


def test_of_many_rows_the_sum_travels():
    """A table that is smaller than the rows of all words: its sum is less to send."""
    simulation = _make_embedding(20, 100_000)
    _compare_of_32(simulation)
    assert simulation.bytes > 50_000 * 64 * 4


def _compare_of_32(simulation):
    expected = simulation.run_alone(1)
    for given in simulation.run((17, 15)):
        assert not find_difference(expected, given, 1e-5)
