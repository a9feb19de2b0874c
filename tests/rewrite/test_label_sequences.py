"""Losses of sequences of labels: ranks compute those of their rows, and gather nothing."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from op_cases import ARRAYS, label_sequences
from simulated_ranks import Simulation

LOGITS = np.random.default_rng(0).normal(size=[5, 6, 4])


def _list_gathered(simulation):
    simulation.run((3, 2))
    return [one.tensor for one in simulation.requests if one.kind == "gather"]


@pytest.mark.parametrize("is_open", [True, False])
def test_only_what_leaves_the_step_is_gathered(is_open):
    def train(image, floats, more, ids):
        made, losses, gradients = label_sequences(image, floats, more, ids)
        return [tf.reduce_sum(one) for one in (*made, losses, *gradients)]

    simulation = Simulation(train, [ARRAYS[name] for name in ("image", "floats", "more", "ids")], is_open=is_open)
    assert _list_gathered(simulation) == []


def test_functions_of_single_entries_gather_nothing():
    def measure(p):
        kinds = tf.math.special
        found = kinds.spence(p), kinds.expint(p), kinds.dawsn(p), kinds.fresnel_cos(p), kinds.fresnel_sin(p)
        return [tf.reduce_sum(one) for made in found for one in (made, tf.gradients(made, p)[0])]

    assert _list_gathered(Simulation(measure, [ARRAYS["p"]])) == []


@pytest.mark.parametrize(
    ("places", "says"),
    [
        ([[0, 0], [1, 0], [2, 0], [3, 0], [4, 0], [5, 0]], "out of bounds"),
        ([[-1, 0], [0, 0], [1, 0], [2, 0], [3, 0], [4, 0]], "out of bounds"),
        ([[3, 0], [4, 0], [0, 0], [1, 0], [2, 0]], "out of order|out of bounds"),
        ([[0, 0], [1, 0], [2, 0], [3, 0]], "Labels length is zero"),
    ],
)
def test_labels_that_are_an_error_alone_are_one_on_ranks(places, says):
    def measure(logits):
        made = tf.raw_ops.CTCLoss(
            inputs=tf.transpose(logits, [1, 0, 2]),
            labels_indices=tf.constant(places, tf.int64),
            labels_values=tf.ones([len(places)], tf.int32),
            sequence_length=tf.fill([tf.shape(logits)[0]], 6),
        )
        return tf.reduce_sum(made[0])

    simulation = Simulation(measure, [LOGITS])
    with pytest.raises(tf.errors.InvalidArgumentError, match=says):
        simulation.run_alone()
    with pytest.raises(tf.errors.InvalidArgumentError, match=says):
        simulation.run((3, 2))


def test_dense_labels_give_the_loss_and_the_gradients_of_the_script():
    """Its loops call functions by names that are types of ops (`Defun`)."""

    def measure(logits, labels):
        count = tf.shape(logits)[0]
        lengths = tf.fill([count], labels.shape[1]), tf.fill([count], logits.shape[1])
        losses = tf.nn.ctc_loss(labels, tf.transpose(logits, [1, 0, 2]), *lengths, blank_index=0)
        return losses, tf.gradients(tf.reduce_mean(losses), logits)[0]

    labels = np.random.default_rng(0).integers(1, 4, [5, 3])
    simulation = Simulation(measure, [LOGITS.astype(np.float32), labels])
    alone = simulation.run_alone()
    for rank in simulation.run((3, 2)):
        for found, wanted in zip(rank, alone, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
