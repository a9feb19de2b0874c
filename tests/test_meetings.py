"""What a step's graph shows of the rows of its batch: whether they meet, or are taken by their number."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from matex_tf import gradients, meetings, rehearsal

ROWS = 107
total = tf.Variable(tf.zeros([4]))
account = keras.metrics.Mean()


def graph_of(step, *shapes):
    specs = [tf.TensorSpec([ROWS, *shape], tf.float32) for shape in shapes]
    return tf.function(step, autograph=False).get_concrete_function(*specs).graph


def in_batch_negatives(x):
    similarities = tf.matmul(x, x, transpose_b=True)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(x)[0]), similarities))


def two_views(x):
    views = tf.concat([x, 2 * x], 0)
    return tf.reduce_mean(tf.nn.softmax(tf.matmul(views, views, transpose_b=True)))


def entropy_of_the_batch(x):
    shares = tf.reduce_mean(tf.nn.softmax(x), axis=0)
    return tf.reduce_sum(shares * tf.math.log(shares))


def correlation(x):
    return tf.reduce_sum((tf.matmul(x, x, transpose_a=True) - tf.eye(4)) ** 2)


def running_sum(x):
    total.assign_add(tf.reduce_sum(x, axis=0))
    return tf.reduce_mean(x)


@pytest.mark.parametrize("step", [in_batch_negatives, two_views, entropy_of_the_batch, correlation, running_sum])
def test_rows_that_meet_are_seen(step):
    assert meetings.rows_meet(graph_of(step, (4,)), ROWS, set())


def mean(x):
    return tf.reduce_mean(tf.reduce_sum(tf.square(x), axis=-1))


def mean_by_column(x):
    return tf.reduce_mean(tf.reduce_mean(tf.square(x), axis=0)) * 3.0


def attention(x):
    queries = tf.reshape(x, [-1, 6, 2])
    return tf.reduce_mean(tf.nn.softmax(tf.matmul(queries, queries, transpose_b=True)))


def patches(x):
    flat = tf.reshape(tf.tile(x[:, None], [1, 49, 1]), [-1, 12])
    return tf.reduce_mean(tf.square(flat))


def norm_of_each_row(x):
    return tf.reduce_mean((tf.norm(x, axis=1) - 1.0) ** 2)


def counted(x):
    account.update_state(x[:, 0])
    return tf.reduce_mean(x)


@pytest.mark.parametrize("step", [mean, mean_by_column, attention, patches, norm_of_each_row, counted])
def test_sums_and_means_over_rows_are_left_alone(step):
    graph = graph_of(step, (12,))
    accounts = {id(gradients.underlying(variable).handle) for variable in account.variables}
    assert not meetings.rows_meet(graph, ROWS, accounts)
    assert not meetings.knows_rows(graph)


@pytest.mark.parametrize(
    "take",
    [
        lambda x: x[0] - x[1],
        lambda x: x[:8],
        lambda x: x[::2],
        lambda x: tf.split(x, ROWS)[0],
        lambda x: tf.unstack(x)[3],
    ],
    ids=["numbers", "first eight", "every second", "split", "unstack"],
)
def test_rows_taken_by_number_are_seen(take):
    assert meetings.knows_rows(graph_of(take, (4,)))


@pytest.mark.parametrize(
    "take",
    [
        lambda x: x[:, 0],
        lambda x: x[..., :2],
        lambda x: x[: tf.shape(x)[0] // 2],
        lambda x: x[::-1],
        lambda x: tf.zeros_like(x[:1]),
    ],
)
def test_rows_taken_otherwise_are_not(take):
    assert not meetings.knows_rows(graph_of(take, (4,)))


class Noisy(keras.Model):
    def train_step(self, rows):
        print("traced")
        return {"loss": tf.reduce_mean(self(rows) + tf.zeros([8, 1]))}


class Plain(keras.Model):
    def train_step(self, rows):
        return {"loss": tf.reduce_mean(self(rows) + tf.zeros([tf.shape(rows)[0], 1]))}


@pytest.mark.parametrize("kind, why", [(Noisy, rehearsal.NAMED), (Plain, ""), (keras.Model, "")])
def test_a_step_that_names_its_batch_size_is_found_by_a_trace_that_nobody_notices(kind, why, capsys):
    inputs = keras.Input((4,))
    model = kind(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    for spec, size in ((tf.TensorSpec([8, 4]), None), (tf.TensorSpec([None, 4]), 8)):
        assert rehearsal.why_whole(model, "train", spec, size) == why
    assert capsys.readouterr().out == ""


weights = tf.Variable(tf.ones([4, 3]))


class Trainer:
    """The step of a loop, as a method."""

    def __init__(self, loss):
        self.loss = loss

    @tf.function
    def step(self, x, scale=1.0):
        return scale * self.loss(tf.matmul(x, weights))


@pytest.mark.parametrize(
    "loss, why",
    [
        (mean, ""),
        (in_batch_negatives, rehearsal.MEET),
        (lambda y: tf.reduce_mean(y[0] - y[1]), rehearsal.MEET),
        (lambda y: tf.reduce_mean(y + tf.zeros([8, 1])), rehearsal.NAMED),
    ],
)
def test_a_function_that_has_run_is_traced_once_more_for_other_rows(loss, why):
    trainer, x = Trainer(loss), tf.ones([8, 4])
    function = trainer.step
    assert rehearsal.why_call_whole(function, (x,), {"scale": 2.0}, 8) == why
    assert rehearsal.why_call_whole(function, (tf.ones([9, 4]),), {}, 8) == ""


def test_a_function_that_takes_its_rows_by_their_number_is_found():
    function = tf.function(lambda batch: tf.reduce_mean(batch["x"][0] - batch["x"][1]))
    assert rehearsal.why_call_whole(function, ({"x": tf.ones([8, 4])},), {}, 8) == rehearsal.NAMED
