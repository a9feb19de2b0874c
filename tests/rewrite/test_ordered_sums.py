"""Replicated terms are added in the script's order on every rank, whichever buffers TensorFlow may overwrite."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
import tensorflow as tf
from simulated_ranks import Simulation

LARGE = 2.0**53  # LARGE + 1 is rounded to LARGE
SUMS = {
    "AddV2": lambda terms: terms[0] + terms[1] + terms[2],
    "AddN": tf.add_n,
    "AccumulateNV2": lambda terms: tf.raw_ops.AccumulateNV2(inputs=terms, shape=[2]),
}


@pytest.mark.parametrize("name", SUMS)
def test_terms_are_added_in_the_order_of_the_script(name):
    first, second = tf.Variable([LARGE] * 2, dtype=tf.float64), tf.Variable([1.0] * 2, dtype=tf.float64)

    def step(x):
        third = -tf.reduce_sum(x, 0)  # only the sum uses this buffer
        return SUMS[name]([first.read_value(), second.read_value(), third]) * 2.0

    simulation = Simulation(step, [np.full([4, 2], LARGE / 4)])
    for result, *_ in simulation.run([2, 2]):
        assert result.tolist() == [0.0, 0.0]
