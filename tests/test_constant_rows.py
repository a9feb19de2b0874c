"""Tensors of the whole batch's rows, beside a slice: cut where rows meet, and only there."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from matex_tf import constant_rows, figures, steps


@pytest.fixture
def rows(monkeypatch):
    """The last of three slices of a batch of eleven rows: rows 8 to 11."""
    now = steps.Slice(8, 11, 11, frozenset({3, 4}), 3 / 11, 1.0)
    monkeypatch.setattr(steps, "_slice", now)
    return now


def whole(*shape):
    return tf.reshape(tf.range(float(np.prod(shape))), shape)


def test_rows_that_meet_are_cut(rows):
    constant, mine = whole(11, 2), whole(3, 2)
    for repeats in (True, False):
        cut, same = constant_rows.aligned([constant, mine], repeats)
        np.testing.assert_array_equal(cut, constant[8:11])
        assert same is mine
    label, scores = constant_rows.aligned([np.arange(11), whole(3, 5)], repeats=False)
    assert label.tolist() == [8, 9, 10] and scores.shape == (3, 5)


def test_batches_below_one_another_are_cut_each(rows):
    cut, _ = constant_rows.aligned([whole(22, 1), whole(6, 1)], repeats=False)
    np.testing.assert_array_equal(tf.reshape(cut, [-1]), [8, 9, 10, 19, 20, 21])


def test_two_slices_with_as_many_rows_as_the_batch_are_not_cut(monkeypatch):
    monkeypatch.setattr(steps, "_slice", steps.Slice(2, 4, 4, frozenset({2}), 0.5, 1.0))
    labels, scores = whole(8, 1), whole(4, 1)
    cut, same = constant_rows.aligned([labels, scores], repeats=False)
    assert same is scores
    np.testing.assert_array_equal(tf.reshape(cut, [-1]), [2, 3, 6, 7])


def test_what_does_not_meet_rows_is_left(rows):
    variable = tf.Variable(whole(11, 2))
    for parts in (
        [whole(11, 2), whole(11, 2)],  # nothing of the slice
        [whole(3, 2), whole(3, 2)],  # nothing of the whole batch
        [variable, whole(3, 2)],
        [whole(11), whole(3, 11)],  # a vector, to be repeated for each row
        [whole(11, 2), 2.0],
    ):
        assert [a is b for a, b in zip(constant_rows.aligned(parts, repeats=True), parts)] == [True, True]
    vectors = [whole(11), whole(3)]
    assert constant_rows.joined(vectors, 0)[0] is vectors[0], "parameters in a row are no batch"
    assert constant_rows.joined([whole(11, 2), whole(3, 2)], 0)[0].shape == (3, 2)
    assert constant_rows.joined([whole(11, 2), whole(3, 5)], 1)[0].shape == (3, 2)


def test_without_a_slice_nothing_is_cut():
    parts = [whole(11, 2), whole(3, 2)]
    assert constant_rows.aligned(parts, repeats=False)[0] is parts[0]


def test_figures_are_noted_of_rows_alone(rows):
    result = tf.constant(1.0)
    figures.note(result, whole(4, 2), None, "mean")
    assert figures.part_of(result) == figures.Part("mean", 3 / 11, 1.0, 4, 8), "another rank's slice has four rows"
    of_row, of_weights = tf.constant(1.0), tf.constant(1.0)
    figures.note(of_row, whole(3, 2), 1, "sum")
    figures.note(of_weights, whole(5, 2), None, "sum")
    assert figures.part_of(of_row) is None and figures.part_of(of_weights) is None
    again = tf.constant(1.0)
    figures.note(again, result, None, "sum")
    assert figures.part_of(again).kind == "mean", "a sum of a figure is that figure"
    with figures.left_alone():
        inside = tf.constant(1.0)
        figures.note(inside, whole(3, 2), None, "sum")
    assert figures.part_of(inside) is None


@pytest.mark.parametrize(
    ("axis", "rank", "removes"), [(None, 2, True), (None, 0, False), (0, 2, True), (-1, 1, True), (-1, 2, False)]
)
def test_reductions_that_remove_rows(axis, rank, removes):
    assert figures.removes_rows(axis, rank) is removes
    assert figures.removes_rows([axis], rank) is (removes and axis is not None)
