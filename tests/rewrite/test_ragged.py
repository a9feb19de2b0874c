"""Ragged and sparse tensors, made of rows of a batch or given beside them: ranks make of them what the step makes."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
import tensorflow as tf
from simulated_ranks import Simulation, find_difference

_random = np.random.default_rng(4)
X, WORDS = _random.normal(size=[11, 6]), _random.integers(0, 9, [11, 6])
LENGTHS = np.array([0, *_random.integers(0, 7, [10])])
TEXTS = np.array([b"a b", b"", b"c d e"] * 3 + [b"q", b"r s"], "S5")
W = _random.normal(size=[6, 2])
VALUES, SPLITS = _random.normal(size=LENGTHS.sum()), np.cumsum([0, *LENGTHS])
TABLE = tf.Variable(_random.normal(size=[9, 2]))


def _make_ragged(x, lengths):
    rows = tf.RaggedTensor.from_tensor(x, lengths)
    return (rows.to_tensor(), tf.reduce_sum(rows, 1), tf.reduce_mean(rows + 1.0, 1), rows.row_lengths(),
            tf.reduce_sum(rows), tf.concat([rows, rows], 1).to_tensor(),
            tf.map_fn(tf.reduce_sum, rows, fn_output_signature=tf.float64))  # fmt: skip


def _look_up(words, lengths):
    with tf.GradientTape() as tape:
        found = tf.nn.embedding_lookup(TABLE, tf.RaggedTensor.from_tensor(words, lengths))
        loss = tf.reduce_mean(tf.reduce_sum(found, 1))
    TABLE.assign_sub(tf.convert_to_tensor(tape.gradient(loss, TABLE)) * 0.1)
    return loss, found.to_tensor()


def _split_texts(texts):
    words = tf.strings.split(texts)
    parts = tf.raw_ops.StringSplitV2(input=texts, sep=" ")
    return (words.to_tensor(), words.row_lengths(), tf.strings.to_hash_bucket_fast(words.values, 100),
            tf.strings.reduce_join(words, 1), words.to_tensor(shape=[None, 2]), parts.indices, parts.shape,
            parts.shape[1:], parts.indices[:, 0], parts.indices[:, 1], parts.values)  # fmt: skip


def _make_sparse(x):
    found = tf.sparse.from_dense(tf.where(x > 0, x, tf.zeros_like(x)))
    return (tf.sparse.to_dense(found), tf.sparse.sparse_dense_matmul(found, W), tf.sparse.reduce_sum(found, 1),
            found.values, tf.ragged.boolean_mask(x, x > 0).to_tensor())  # fmt: skip


def _split_rows(x, lengths):
    ends = tf.concat([[0], tf.cumsum(lengths)], 0)
    rows = tf.RaggedTensor.from_row_splits(tf.reshape(x, [-1])[: tf.reduce_sum(lengths)], ends)
    return rows.to_tensor(), rows.value_rowids()


def _take_ragged(x, values, splits):
    """A ragged batch, whole on each rank, beside one that is divided."""
    rows = tf.RaggedTensor.from_row_splits(values, splits)
    dense = rows.to_tensor(shape=[None, 6])
    return tf.reduce_mean(tf.square(dense - x)), tf.reduce_sum(rows, 1) * x[:, 0], rows.row_lengths()


def _take_sparse(x, values, splits):
    places = tf.stack(
        [tf.RaggedTensor.from_row_splits(values, splits).value_rowids(), tf.range(VALUES.size, dtype=tf.int64) % 6], 1
    )
    given = tf.sparse.reorder(tf.SparseTensor(places, values, [11, 6]))
    return tf.sparse.sparse_dense_matmul(given, W) + x[:, :2], tf.reduce_sum(tf.sparse.reduce_sum(given, 1) * x[:, 0])


CASES = {
    _make_ragged: [X, LENGTHS], _look_up: [WORDS, LENGTHS], _split_texts: [TEXTS], _make_sparse: [X],
    _split_rows: [X, LENGTHS], _take_ragged: [X, VALUES, SPLITS], _take_sparse: [X, VALUES, SPLITS],
}  # fmt: skip
GIVEN = dict.fromkeys((_take_ragged, _take_sparse), (1, 2))
"""Which arguments each rank has whole."""


@pytest.mark.parametrize("step", CASES, ids=lambda step: step.__name__[1:])
def test_ranks_compute_what_the_step_computes_alone(step):
    arguments = CASES[step]
    simulation = Simulation(step, arguments, fixed=GIVEN.get(step, ()))
    expected = simulation.run_alone()
    for counts in ((6, 5), (5, 0, 6)):
        for rank, given in enumerate(simulation.run(counts)):
            assert not find_difference(expected, given), f"rank {rank}, {counts} rows"
