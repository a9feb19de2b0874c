"""Updates of which ranks have pieces: what they give together is what a rank gives alone."""

import numpy as np
import pytest
import simulated_ranks
import tensorflow as tf

from matex_tf.rewrite.pieces import PiecesRefusedError
from matex_tf.rewrite.placement import PieceHandle

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(7, 5)), rng.normal(size=(7, 3))
CUTS = {2: (0, 8, 15), 3: (0, 0, 8, 15)}


class Optimizer:
    """A layer and slots of its weights."""

    def __init__(self, slots=2):
        start = np.random.default_rng(1)
        self.kernel = tf.Variable(start.normal(size=(5, 3)))
        self.bias = tf.Variable(start.normal(size=3))
        self.slots = [tf.Variable(start.uniform(0.1, 1, size=(5, 3)), trainable=False) for _ in range(slots)]

    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(x @ self.kernel + self.bias) - y) ** 2)
        return loss, *tape.gradient(loss, [self.kernel, self.bias])

    def adam(self, gradient):
        m, v = self.slots
        m.assign_add((gradient - m) * 0.1)
        v.assign_add((tf.square(gradient) - v) * 0.001)
        self.kernel.assign_sub(m * 0.01 / (tf.sqrt(v) + 1e-7))


def adam(x, y):
    loss, kernel, bias = of.gradients(x, y)
    of.adam(kernel)
    of.bias.assign_sub(0.1 * bias)
    return loss


def clipped_by_global_norm(x, y):
    loss, kernel, bias = of.gradients(x, y)
    (kernel, bias), norm = tf.clip_by_global_norm([kernel, bias], 0.1)
    of.adam(kernel)
    of.bias.assign_sub(0.1 * bias)
    return loss, norm


def clipped_by_value(x, y):
    loss, kernel, _ = of.gradients(x, y)
    of.adam(tf.clip_by_value(kernel, -0.01, 0.02))
    return loss


def lamb(x, y):
    _, kernel, _ = of.gradients(x, y)
    m, v = of.slots
    m.assign(m * 0.9 + kernel * 0.1)
    v.assign(v * 0.9 + kernel * kernel * 0.1)
    update = m / tf.sqrt(v) + 0.1 * of.kernel
    ratio = tf.norm(of.kernel) / tf.norm(update)
    of.kernel.assign_sub(0.01 * ratio * update)
    return tf.reduce_max(m), tf.reduce_mean(v), tf.reduce_all(tf.math.is_finite(v)), tf.reduce_any(m > 0.9)


def only_if_finite(x, y):
    loss, kernel, _ = of.gradients(x, y)
    finite = tf.reduce_all(tf.math.is_finite(kernel))
    tf.cond(finite, lambda: [of.adam(kernel / 2), tf.constant(0)][1], lambda: tf.constant(1))
    return loss


def accumulated(x, y):
    _, kernel, _ = of.gradients(x, y)
    total, m = of.slots
    total.assign_add(kernel)

    def update():
        m.assign(0.9 * m + total / 2)
        of.kernel.assign_sub(0.1 * tf.reshape(tf.reshape(m, [-1]), [5, 3]))
        total.assign(tf.zeros_like(total))
        return 1

    return tf.cond(tf.reduce_sum(total) > 4, update, lambda: 0)


def read_whole(x, y):
    loss = adam(x, y)
    return loss, of.slots[0] @ tf.ones([3, 1], tf.float64), of.slots[1][0], tf.shape(of.slots[0]), of.slots[0] + 0


def in_a_loop(x, y):
    for _ in tf.range(2):
        _, kernel, _ = of.gradients(x, y)
        of.adam(kernel)
    return of.kernel + 0


def centred(x, y):
    """Muon's and Adafactor's kind: sums along one axis need the whole."""
    _, kernel, _ = of.gradients(x, y)
    m, v = of.slots
    m.assign(0.9 * m + kernel)
    v.assign(v * 0.9 + tf.reduce_mean(kernel**2, 0, keepdims=True))
    of.kernel.assign_sub(0.1 * (m @ tf.transpose(m)) @ m / tf.sqrt(v))
    return tf.reduce_sum(m, 0)


def normalized(x, y):
    """A statistic of the batch has a moving average, as that of BatchNormalization."""
    products = x[:, :, None] * y[:, None, :]
    mean = tf.reduce_mean(products, 0)
    of.slots[0].assign_add((mean - of.slots[0]) * 0.1)
    return tf.reduce_sum((products - tf.sqrt(mean**2)) ** 2)


def next_to_rows_in_a_branch(x, y):
    """A branch takes rows and a gradient, and does not combine them."""
    loss, kernel, _ = of.gradients(x, y)

    def update():
        of.adam(kernel)
        return tf.reduce_sum(x)

    return tf.cond(loss > 0, update, lambda: tf.zeros([], tf.float64))


def normalized_in_a_branch(x, y):
    """A branch computes a statistic of the batch further, and rows are combined with its result."""
    products = x[:, :, None] * y[:, None, :]
    mean = tf.reduce_mean(products, 0)
    of.slots[0].assign_add((mean - of.slots[0]) * 0.1)
    root = tf.cond(tf.reduce_sum(of.bias) > 0, lambda: tf.sqrt(mean**2), lambda: 2 * tf.sqrt(mean**2))
    return tf.reduce_sum((products - root) ** 2)


CASES = [adam, clipped_by_global_norm, clipped_by_value, lamb, only_if_finite, accumulated, read_whole, in_a_loop,
         centred, next_to_rows_in_a_branch]  # fmt: skip


def simulate(step, ranks):
    global of
    of = Optimizer()
    handles = {id(one.handle): number for number, one in enumerate(of.slots)}
    held = {key: PieceHandle(CUTS[ranks], number) for key, number in handles.items()}
    return simulated_ranks.Simulation(tf.function(step), [X, Y], held=held)


@pytest.mark.parametrize("rows", [(4, 3), (7, 0), (3, 0, 4)])
@pytest.mark.parametrize("step", CASES, ids=lambda step: step.__name__)
def test_pieces_give_what_is_given_alone(step, rows):
    one = simulate(step, len(rows))
    alone = one.run_alone(3)
    for found in one.run(rows, 3):
        for want, have in zip(alone, found, strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("step", CASES, ids=lambda step: step.__name__)
def test_gradients_of_pieces_are_not_summed_whole(step):
    one = simulate(step, 2)
    one.run((4, 3))
    sums = [one for one in one.requests if one.kind == "sum" and not one.owned]
    whole = [one for one in sums if one.tensor == (5, 3) and not one.cuts]
    assert not whole and any(one.cuts for one in sums)


@pytest.mark.parametrize("step", [normalized, normalized_in_a_branch], ids=lambda step: step.__name__)
def test_rows_are_not_gathered_for_a_sum_that_ranks_hold_in_pieces(step):
    one = simulate(step, 2)
    found = one.run((4, 3), 2)
    assert {one.kind for one in one.requests} == {"sum"}
    for want, have in zip(one.run_alone(2) * 2, (each for rank in found for each in rank), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-12, atol=1e-12)


def test_an_op_that_takes_a_variable_whole_is_told():
    def scatter(x, y):
        _, kernel, _ = of.gradients(x, y)
        of.slots[1].scatter_sub(tf.IndexedSlices(kernel[:1], tf.constant([2])))
        of.slots[0].assign_add(kernel)

    with pytest.raises(PiecesRefusedError) as found:
        simulate(scatter, 2)
    assert {number: op.type for number, op in found.value.refused.items()} == {1: "ResourceScatterSub"}
