"""The cost of a batch of input that `matex plan` measures, for pipelines that work at different times of a pass."""

import time

import pytest
import tensorflow as tf

from matex_tf.observe.input_costs import Data, measure_input

ROWS, BATCH, SECONDS = 128, 4, 0.002


def work(row):
    until = time.thread_time() + SECONDS
    while time.thread_time() < until:
        pass
    return row


def make_rows():
    return tf.data.Dataset.range(ROWS).map(lambda row: tf.numpy_function(work, [row], tf.int64))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: make_rows().batch(BATCH), id="row by row"),
        pytest.param(lambda: make_rows().shuffle(ROWS).batch(BATCH), id="all before the first batch"),
        pytest.param(lambda: make_rows().shuffle(ROWS // 4).batch(BATCH).prefetch(2), id="a quarter of a pass before"),
    ],
)
def test_each_batch_costs_its_share_of_the_work_of_a_pass(make):
    dataset = make()
    iterator = iter(dataset)
    next(iterator)
    cost = measure_input(Data(dataset, lambda: next(iterator, None), lambda other: next(other, None)))
    assert BATCH * SECONDS <= cost.seconds < 3 * BATCH * SECONDS
