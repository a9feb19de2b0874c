"""The op that deals a batch's rows to ranks deals them as `slice_bounds` does."""

import numpy as np
import pytest
import tensorflow as tf

from matex_tf import ops
from matex_tf.sharding import slice_bounds


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_dealt_as_everywhere(seed):
    random = np.random.default_rng(seed)
    ranks = int(random.integers(1, 9))
    shares = random.integers(0, 5, ranks)
    shares[random.integers(ranks)] += 1
    for total in random.integers(0, 40, 10).tolist():
        for rank in range(ranks):
            start, stop, has_rows = slice_bounds.find_slice_bounds(total, rank, shares.tolist())
            counts = tf.constant([total] * int(random.integers(1, 4)), tf.int64)
            found = ops.deal_rows(counts, tf.constant([1, rank, *shares], tf.int64))
            assert [one.numpy() for one in found] == [start, stop - start, total, has_rows]


def test_a_batch_is_taken_whole_where_its_components_differ_or_that_is_asked_for():
    for counts, whole in (([6, 4], 1), ([4, 6], 1), ([6, 6], 0)):
        found = ops.deal_rows(tf.constant(counts, tf.int64), tf.constant([whole, 1, 1, 1], tf.int64))
        assert (int(found.first), int(found.count), int(found.total)) == (0, 6, counts[0])


@pytest.mark.parametrize("dealt", [[1, 2, 1, 1], [1, 0], [1, 0, 0, 0]])
def test_shares_without_this_rank_are_an_error(dealt):
    with pytest.raises(tf.errors.InvalidArgumentError):
        ops.deal_rows(tf.constant([6], tf.int64), tf.constant(dealt, tf.int64))
