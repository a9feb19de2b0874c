"""Copies whose ops run part by part: results are those of all rows at once, and few rows are kept."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import growing
import keras
import numpy as np
import pytest
import tensorflow as tf
from simulated_ranks import Simulation, find_difference

from matex_tf.microbatches import cutting
from matex_tf.rewrite import waves
from matex_tf.rewrite.placement import Sharded

COUNTS = [(11,), (6, 5), (5, 0, 6)]
_random = np.random.default_rng(5)
X, Y = _random.normal(size=[11, 6]), _random.normal(size=[11, 2])


def run_in_parts(function, arguments, counts, part_rows, steps=1, tolerance=1e-10):
    """The ops that are outside of regions, and why, once the results are those of the function alone."""
    simulation = Simulation(function, arguments)
    simulation.part_rows = part_rows
    expected = simulation.run_alone(steps)
    for rank, given in enumerate(simulation.run(counts, steps)):
        assert not find_difference(expected, given, tolerance), f"rank {rank} of {len(counts)}, {counts} rows"
    return {(one.node.type, one.why) for one in simulation.left}


def find_regions(function, arguments):
    regions = []
    program = Simulation(function, arguments).program
    before = len(waves.schedule(program))

    def note(region):
        regions.append(region)
        return lambda *_: []

    cut = cutting.cut(program, note, [])
    assert len(waves.schedule(cut)) == before  # no more collectives than at once
    return regions


def give_rows(region):
    return [value for value in region.gives if isinstance(value.placement, Sharded)]


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.more) for seed in range(2, 60))])
def test_random_graphs(seed):
    function, arguments, counts = growing.grow(seed, 3)
    run_in_parts(function, arguments, counts, 1 + seed % 2)


def make_step(*layers, after=lambda made: made, of_mean=tf.identity):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), *layers])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            made = after(model(x, training=True))
            loss = of_mean(tf.reduce_mean(tf.square(made - y)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss, made, tf.linalg.global_norm(gradients), tf.shape(x)[0]

    return step


@pytest.fixture
def layers(float64):
    return keras.layers


@pytest.mark.parametrize("counts", COUNTS)
def test_dropout_is_that_of_all_rows(layers, counts):
    inner = [layers.Dense(8, "tanh"), layers.Dropout(0.5), layers.GaussianNoise(0.1), layers.Dense(2)]
    step = make_step(*inner, of_mean=tf.sqrt)
    assert run_in_parts(step, [X, Y], counts, 2, steps=2) == set()


def test_statistics_of_the_batch_are_those_of_all_rows(layers):
    step = make_step(layers.Dense(8), layers.BatchNormalization(), layers.ReLU(), layers.Dense(2),
                     layers.BatchNormalization())  # fmt: skip
    assert run_in_parts(step, [X, Y], COUNTS[1], 2, steps=2) == set()


def test_recurrent_layers(layers):
    step = make_step(layers.Reshape((3, 2)), layers.LSTM(4, unroll=False), layers.Dense(2))
    assert run_in_parts(step, [X, Y], COUNTS[1], 2, steps=2) == set()


def test_rows_that_a_mask_chose(layers):
    step = make_step(layers.Dense(2), after=lambda made: tf.where(made > 0, made, tf.reduce_max(made)))

    def chosen(x, y):
        found = tf.boolean_mask(x, y[:, 0] > 0)
        return found, tf.shape(found)[0], tf.reduce_mean(found, 0), tf.reduce_min(y), step(x, y)

    run_in_parts(chosen, [X, Y], COUNTS[1], 2)


def test_what_comes_out_of_parts_is_of_each_kind(layers):
    """Rows along other axes, in blocks of several batches; numbers of rows; extremes; sums of half precision."""

    def step(x, y):
        both = tf.concat([x[:, :2], y], 0)
        turned = tf.transpose(tf.concat([x, y], 1))
        half = tf.cast(x, tf.float16)
        return (both, turned, tf.reduce_all(x > -9), tf.reduce_any(x > 9), tf.reduce_max(x, 0), tf.reduce_sum(half),
                tf.strings.as_string(tf.cast(x, tf.int32)), tf.cast(tf.size(both), tf.float64) * both,
                tf.complex(x, x), tf.reduce_sum(tf.complex(x, x)))  # fmt: skip

    run_in_parts(step, [X, Y], COUNTS[1], 2, tolerance=1e-3)


def test_what_stands_for_a_sum_counts_once(layers):
    def step(x, y):
        is_large = tf.shape(x)[0] > 100
        return tf.cond(is_large, lambda: tf.reduce_sum(x), lambda: tf.constant(5.0, tf.float64))

    assert run_in_parts(step, [X, Y], COUNTS[1], 2) == set()


def test_effects_happen_once(layers):
    seen = tf.Variable(0, dtype=tf.int64)
    called = []

    def look(rows):
        called.append(len(rows))
        return rows

    def step(x, y):
        hidden = tf.tanh(x)
        seen.assign_add(tf.cast(tf.shape(x)[0], tf.int64))
        tf.print(tf.reduce_sum(hidden), output_stream="file:///dev/null")
        looked = tf.ensure_shape(tf.numpy_function(look, [hidden], tf.float64), [None, 6])
        drawn = tf.random.uniform(tf.shape(x), seed=7, dtype=tf.float64) * looked
        return tf.reduce_sum(drawn), drawn

    tf.random.set_seed(3)
    simulation = Simulation(step, [X, Y])
    simulation.part_rows = 2
    tf.random.set_seed(3)
    expected = simulation.run_alone()
    called.clear()
    for given in simulation.run((6, 5)):
        assert given[-1] == 11 and given[1].shape == expected[1].shape
    assert called == [11, 11]  # once for each rank, of all rows


def test_activations_stay_within_one_region(layers):
    step = make_step(*(layers.Dense(8, "tanh") for _ in range(4)), layers.Dropout(0.5), layers.Dense(2))
    (region,) = find_regions(step, [X, Y])
    assert [value.shape for value in give_rows(region)] == [[None, 2]]  # what the step returns


def test_gradients_of_weights_keep_no_rows_from_region_to_region(layers):
    """Of a layer before BatchNormalization only what the formulas of both sides of a collective share is kept."""
    step = make_step(layers.Dense(8), layers.BatchNormalization(), layers.Activation("tanh"), layers.Dense(2))
    regions = find_regions(step, [X, Y])
    assert len(regions) > 2
    assert len({value.key for region in regions for value in give_rows(region)}) <= 8


def test_rows_that_are_kept_are_told(layers):
    normalised = [layers.Dense(8), layers.BatchNormalization(), layers.Dense(2)]
    for step, is_kept in ((make_step(layers.Dense(2)), False), (make_step(*normalised), True),
                          (make_step(layers.Dense(2), of_mean=tf.sqrt), True)):  # fmt: skip
        assert bool(cutting.list_kept(find_regions(step, [X, Y]))) == is_kept
