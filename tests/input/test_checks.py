"""Checks in maps: a batch that raises an error alone raises it on a rank that makes rows of it."""

import numpy as np
import pytest
import tensorflow as tf

from matex_tf.input import shared_batches
from matex_tf.steps import batches

X = np.arange(24, dtype=np.float32).reshape(12, 2)
BAD = X[7, 0]


def is_good(x):
    return tf.reduce_all(tf.not_equal(x, BAD))


def assert_as_control(x):
    """The copy of the input waits for a check that no output needs."""
    with tf.control_dependencies([tf.debugging.Assert(is_good(x), [x])]):
        return tf.identity(x)


def assert_alone(x):
    tf.debugging.assert_none_equal(x, tf.constant(BAD, x.dtype))
    return x


def assert_in_branch(x):
    tf.cond(is_good(x), lambda: True, lambda: tf.reduce_all(tf.debugging.check_numerics(x / 0.0, "") > 0))
    return x


def check_numerics_as_control(x):
    with tf.control_dependencies([tf.debugging.check_numerics(tf.where(x == BAD, np.float32(np.nan), x), "")]):
        return tf.identity(x)


def check_numerics_before_work(x):
    return tf.debugging.check_numerics(tf.where(x == BAD, np.float32(np.nan), x), "") * 2


def look_up_beyond_the_end(x):
    """An op without state that fails."""
    ones = tf.gather(tf.ones([1], x.dtype), tf.where(tf.reduce_any(x == BAD, -1, keepdims=True), 9, 0))
    return x * ones


CHECKS = [
    assert_as_control, assert_alone, assert_in_branch, check_numerics_as_control, check_numerics_before_work,
    look_up_beyond_the_end,
]  # fmt: skip


def work(x):
    return x * 3 + 1


PLACES = {
    "behind the work": lambda rows, check: rows.map(work).map(lambda x: check((x - 1) / 3)).batch(6),
    "before the work": lambda rows, check: rows.map(check).map(work).batch(6),
    "before a cache": lambda rows, check: rows.map(check).cache().map(work).batch(6),
    "before work on batches": lambda rows, check: rows.map(check).batch(6).map(work),
    "of batches": lambda rows, check: rows.map(work).batch(6).map(lambda x: check((x - 1) / 3)),
    "next to the work": lambda rows, check: tf.data.Dataset.zip((rows.map(check), rows.map(work))).batch(6),
    "before random numbers": lambda rows, check: (
        rows.map(check).map(lambda x: x + tf.random.uniform([], seed=1)).batch(6)
    ),
    "of a result that no map takes": lambda rows, check: (
        rows.map(lambda x: (x, check(x))).map(lambda x, _: work(x)).batch(6)
    ),
    "of a result that is left out": lambda rows, check: rows.map(lambda x: (x, check(x))).map(lambda x, _: x).batch(6),
    "of a result that is not cached": lambda rows, check: (
        rows.map(lambda x: (work(x), check(x))).map(lambda x, _: x).cache().batch(6)
    ),
    "of a result that no map of batches takes": lambda rows, check: (
        rows.map(lambda x: (x, check(x))).batch(6).map(lambda x, _: work(x))
    ),
    "of a result of batches that no map takes": lambda rows, check: (
        rows.map(work).batch(6).map(lambda x: (x, check((x - 1) / 3))).map(lambda x, _: work(x))
    ),
}


@pytest.mark.parametrize(
    "place, check",
    [
        pytest.param(place, check, marks=pytest.mark.more if (row + column) % 2 else [])
        for row, place in enumerate(PLACES)
        for column, check in enumerate(CHECKS)
    ],
)
def test_a_batch_with_a_bad_row_raises(place, check):
    dataset = PLACES[place](tf.data.Dataset.from_tensor_slices(X), check)
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(dataset)
    source = shared_batches.find_source(dataset)
    if source is None:
        return  # ranks run the script's own pipeline
    whole = source.iterate(tf.data.Dataset.__iter__)
    next(whole)
    with pytest.raises(tf.errors.InvalidArgumentError):
        next(whole)
    outcomes = []
    for rank in range(2):
        source.rows_ahead.set_numbers([1, rank, 1, 1])
        shares = batches.find_shared_batches(source.iterate(tf.data.Dataset.__iter__))
        shares.take()
        try:
            shares.take()
            outcomes.append("")
        except tf.errors.InvalidArgumentError:
            outcomes.append("raised")
    assert "raised" in outcomes


@pytest.mark.parametrize(
    "ignore",
    [
        lambda files: files.interleave(tf.data.TFRecordDataset).map(lambda record: 1),
        lambda files: files.interleave(lambda one: tf.data.TFRecordDataset(one).map(lambda record: 1)),
        lambda files: files.interleave(
            lambda one: tf.data.TFRecordDataset(one).map(lambda record: (record, 1)).map(lambda record, number: number)
        ),
        lambda files: files.map(tf.io.read_file).map(lambda content: 1),
    ],
)
def test_a_missing_file_raises_even_if_its_contents_are_not_used(tmp_path, ignore):
    dataset = ignore(tf.data.Dataset.from_tensors(str(tmp_path / "missing"))).batch(2)
    with pytest.raises(tf.errors.NotFoundError):
        list(dataset)
    with pytest.raises(tf.errors.NotFoundError):
        list(shared_batches.find_source(dataset).iterate(tf.data.Dataset.__iter__))


def test_most_of_these_are_shared():
    rows = tf.data.Dataset.from_tensor_slices(X)
    found = [shared_batches.find_source(make(rows, check)) for make in PLACES.values() for check in CHECKS[::3]]
    assert sum(one is not None for one in found) > 0.8 * len(found)
