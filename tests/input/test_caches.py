"""`cache` of a pipeline whose work waits: rows are those that the script alone keeps, whatever came before."""

import numpy as np
import pytest
import tensorflow as tf

from matex_tf.input import shared_batches


def pairs():
    return tf.data.Dataset.range(64).shuffle(64, seed=3).map(lambda x: (x, 10 * x))


@pytest.mark.parametrize("make", [lambda: pairs().cache().batch(4), lambda: pairs().batch(4).cache()])
def test_a_pass_that_ends_early_keeps_nothing(make):
    alone, source = make(), shared_batches.find_source(make())
    for count in (1, 3, 16, 16):
        whole = source.iterate(tf.data.Dataset.__iter__)
        expected = list(alone.take(count))
        for want in expected:
            for one, other in zip(next(whole), want):
                np.testing.assert_array_equal(one, other)
        del whole


def test_work_that_is_cached_reads_nothing_that_changes():
    rows, grows = tf.data.Dataset.range(8), tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
    kept = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(tf.range(8), tf.range(8) * 2), -1)
    weight = tf.Variable(2, dtype=tf.int64)
    nested = rows.interleave(lambda x: tf.data.Dataset.range(x, x + 1).map(lambda y: y * weight))
    for dataset, is_shared in (
        (rows.map(grows.lookup), False),
        (rows.map(lambda x: x * weight), False),
        (nested.map(lambda x: x + 1), False),
        (rows.map(lambda x: kept.lookup(tf.cast(x, tf.int32))), True),
        (rows.map(lambda x: x * 2), True),
    ):
        assert (shared_batches.find_source(dataset.cache().batch(4)) is not None) == is_shared
