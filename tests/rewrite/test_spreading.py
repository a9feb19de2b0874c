"""What is the same in all rows of a batch, in a trace of a fixed number of rows, is made for the rows of the rank."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
import tensorflow as tf
from simulated_ranks import Simulation, find_difference

from matex_tf.rewrite.placement import Sharded

ROWS = 6
X = np.random.default_rng(0).normal(size=(ROWS, 4, 3))


def _take_gradient(reduce):
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = reduce(tf.exp(x))
        return tape.gradient(loss, x)

    return step


def _fill(x):
    return x * (1.0 - tf.fill([ROWS, 4, 3], tf.constant(0.25, tf.float64)))


def _broadcast(x):
    return x + tf.broadcast_to(tf.constant([[[1.0], [2.0], [3.0], [4.0]]], tf.float64), [ROWS, 4, 3]) / 3.0


def _repeat_matrix(x):
    """Two entries for each row, one after the other: what is repeated has more than one."""
    return tf.reshape(x, [2 * ROWS, 6]) * tf.tile(tf.constant([[1.0], [2.0]], tf.float64), [ROWS, 6])


def _use_whole_too(x):
    """What meets the rows is needed of all rows, too."""
    spread = tf.tile(tf.reshape(tf.reduce_mean(x, 0), [1, 4, 3]), [ROWS, 1, 1]) / 2.0
    return x - spread, tf.linalg.cholesky(
        tf.matmul(spread, spread, transpose_a=True) + 3.0 * tf.eye(3, dtype=tf.float64)
    )


SPREAD = {
    "mean of all": _take_gradient(tf.reduce_mean),
    "mean of rows": _take_gradient(lambda one: tf.reduce_sum(tf.square(tf.reduce_mean(one, 0)))),
    "mean of rows, axis kept": _take_gradient(
        lambda one: tf.reduce_sum(tf.reduce_mean(one, [0, 1], keepdims=True) ** 2)
    ),
    "fill": _fill,
    "broadcast": _broadcast,
}
KEPT = {"several rows repeated": _repeat_matrix, "needed whole": _use_whole_too}


@pytest.mark.parametrize("step", [*SPREAD.values(), *KEPT.values()], ids=[*SPREAD, *KEPT])
def test_each_rank_has_the_rows_of_the_script(step):
    simulation = Simulation(step, [X], is_open=False)
    expected = simulation.run_alone()
    for counts in ((4, 2), (2, 0, 4)):
        for given in simulation.run(counts):
            assert not find_difference(expected, given)


@pytest.mark.parametrize("step", SPREAD.values(), ids=SPREAD)
def test_no_rank_makes_it_for_the_rows_of_others(step):
    program = Simulation(step, [X], is_open=False).program
    made = [value for node in program.nodes for value in node.outputs if value.whole_shape == [ROWS, 4, 3]]
    assert made and all(isinstance(value.placement, Sharded) for value in made)
