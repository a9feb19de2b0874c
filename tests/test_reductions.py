"""How a loss in a graph depends on the number of rows: what decides whether ranks' losses are averaged or added."""

import pytest
import tensorflow as tf

from matex_tf import reductions


def analysed(loss_of, shape=(None, 4)):
    found = []

    @tf.function(autograph=False)
    def step(x):
        one = reductions.analyse(loss_of(x, weights))
        found.append((one.kind, one.mixed, len(one.ratios), one.denominator is not None))
        return x

    weights = tf.Variable(tf.ones([4, 1]))
    step.get_concrete_function(tf.TensorSpec(shape, tf.float32))
    return found[0]


def kind_of(loss_of, shape=(None, 4)):
    return analysed(loss_of, shape)[0]


def keras_loss(reduction):
    import keras

    return lambda x, w: keras.losses.MeanSquaredError(reduction=reduction)(tf.zeros_like(x @ w), x @ w)


@pytest.mark.parametrize("shape", [(None, 4), (6, 4)])
@pytest.mark.parametrize("kind, loss_of", [
    ("mean", lambda x, w: tf.reduce_mean((x @ w) ** 2)),
    ("mean", lambda x, w: tf.reduce_mean(tf.reduce_sum((x @ w) ** 2, axis=1))),
    ("mean", lambda x, w: 0.5 * tf.reduce_mean((x @ w) ** 2) + 0.01 * tf.reduce_sum(w ** 2)),
    ("mean", lambda x, w: tf.reduce_mean((x @ w) ** 2) + tf.nn.l2_loss(w)),
    ("mean", lambda x, w: tf.reduce_sum((x @ w) ** 2) / tf.cast(tf.shape(x)[0], tf.float32)),
    ("mean", lambda x, w: 0.01 * tf.reduce_sum((x @ w) ** 2) / tf.cast(tf.shape(x)[0], tf.float32)),
    ("mean", lambda x, w: tf.reduce_sum([tf.reduce_mean(x @ w), tf.reduce_mean(x)])),
    ("mean", lambda x, w: tf.reduce_sum(tf.reduce_mean((x @ w) ** 2, axis=0))),
    ("sum", lambda x, w: tf.reduce_mean((x @ w) ** 2, axis=1)),
    ("mean", keras_loss("sum_over_batch_size")),
    ("sum", keras_loss("sum")),
    ("sum", lambda x, w: tf.reduce_sum((x @ w) ** 2)),
    ("sum", lambda x, w: tf.reduce_sum(tf.reduce_mean((x @ w) ** 2, axis=1))),
    ("sum", lambda x, w: tf.reduce_sum((x @ w) ** 2) / 64.0),
    ("sum", lambda x, w: 2 * tf.nn.l2_loss(x @ w) / 64.0),
    ("sum", lambda x, w: tf.nn.compute_average_loss(tf.reduce_sum((x @ w) ** 2, axis=1), global_batch_size=64)),
    ("unknown", lambda x, w: tf.reduce_sum(x @ w) + tf.reduce_mean(x @ w)),
])  # fmt: skip
def test_kind(kind, loss_of, shape):
    assert kind_of(loss_of, shape) == kind


def mask(x):
    return tf.cast(x > 0, tf.float32)


@pytest.mark.parametrize("ratios, exact, loss_of", [
    (1, True, lambda x, w: tf.reduce_sum((x @ w) * mask(x)) / tf.reduce_sum(mask(x))),
    (1, True, lambda x, w: tf.reduce_mean((x @ w) * mask(x)) / tf.reduce_mean(mask(x)) + tf.nn.l2_loss(w)),
    (1, True, lambda x, w: 3.0 * tf.reduce_sum((x @ w) * mask(x) / tf.reduce_sum(mask(x)))),
    (1, False, lambda x, w: tf.reduce_sum((x @ w) * mask(x)) / tf.reduce_sum(mask(x)) + tf.reduce_mean(x @ w)),
    (1, False, lambda x, w: 1 - tf.reduce_sum(x @ w) / (tf.reduce_sum(x @ w) + tf.reduce_sum(x))),
    (1, False, lambda x, w: tf.sqrt(tf.reduce_sum((x @ w) * mask(x)) / tf.reduce_sum(mask(x)))),
    (0, False, lambda x, w: tf.reduce_mean(tf.reduce_sum((x @ w) * mask(x), axis=1) / tf.reduce_sum(mask(x), axis=1))),
])  # fmt: skip
def test_a_ratio_is_exact_if_it_is_the_only_term_and_its_divisor_is_data(ratios, exact, loss_of):
    kind, mixed, found, known = analysed(loss_of)
    assert (kind, mixed, found, known) == ("mean", False, ratios, exact)


def test_means_beside_sums_are_noticed():
    assert analysed(lambda x, w: tf.reduce_sum(x @ w) + tf.reduce_mean(x @ w))[1]
    assert not analysed(lambda x, w: tf.reduce_mean(x) + tf.reduce_mean(x @ w) + tf.nn.l2_loss(w))[1]
