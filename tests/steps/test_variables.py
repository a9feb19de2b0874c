"""Comparisons of the variables of ranks."""

import tensorflow as tf
from peak_memory import peak_of

from matex_tf.steps import variables

VALUES, BYTES = 4, 1 << 24


def compare():
    weights = [tf.Variable(tf.zeros([BYTES // 4])) for _ in range(VALUES)]
    assert variables.synchronize_variables(weights, "comparing weights") == []


def test_a_comparison_copies_no_value():
    assert peak_of(compare) < BYTES
