"""Losses in which the rows of a batch meet, and others: seen in the graph of a function, and in eager code alike."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from matex_tf import meetings, reductions, replay

ROWS, GIVEN = 12, 107
rng = np.random.default_rng(0)
X = tf.constant(rng.normal(size=(ROWS, 5)).astype("float32"))
Y = tf.constant((rng.random((ROWS, 1)) > 0.5).astype("float32"))
W = tf.Variable(rng.normal(size=(5, 8)).astype("float32"))
V = tf.Variable(rng.normal(size=(8, 1)).astype("float32"))


def hidden(x):
    return tf.tanh(tf.matmul(x, W))


def model(x):
    return tf.matmul(hidden(x), V)


def errors(x, y):
    return tf.square(model(x) - y)


def correlated(x, y):
    p = model(x)
    a, b = p - tf.reduce_mean(p), y - tf.reduce_mean(y)
    return -tf.reduce_sum(a * b) / (tf.sqrt(tf.reduce_sum(a**2)) * tf.sqrt(tf.reduce_sum(b**2)))


def balanced(x, y):
    share, p = tf.reduce_mean(y), tf.sigmoid(model(x))
    return -tf.reduce_mean(y * (1 - share) * tf.math.log(p) + (1 - y) * share * tf.math.log(1 - p))


def with_baseline(x, y):
    reward = tf.abs(y - 0.3)
    return -tf.reduce_mean(tf.math.log_sigmoid(model(x)) * (reward - tf.reduce_mean(reward)))


def dice(x, y):
    p = tf.sigmoid(model(x))
    return 1 - 2 * tf.reduce_sum(p * y) / (tf.reduce_sum(p) + tf.reduce_sum(y) + 1)


def halves(x, y):
    a, b = tf.split(model(x), 2)
    return tf.reduce_mean(tf.square(a - b))


def mixed_up(x, y):
    order = tf.random.shuffle(tf.range(tf.shape(x)[0]))
    return tf.reduce_mean(errors(0.7 * x + 0.3 * tf.gather(x, order), 0.7 * y + 0.3 * tf.gather(y, order)))


def of_centres(x, y):
    h = hidden(x)
    near = tf.reduce_sum(h * y, axis=0) / tf.reduce_sum(y)
    far = tf.reduce_sum(h * (1 - y), axis=0) / tf.reduce_sum(1 - y)
    return -tf.reduce_sum(tf.square(near - far))


def of_pairs(x, y):
    p = model(x)
    return tf.reduce_mean(tf.nn.relu(1 - (y - tf.transpose(y)) * (p - tf.transpose(p))))


MEETINGS = {
    "two means": lambda x, y: tf.reduce_mean(model(x)) * tf.reduce_mean(errors(x, y)),
    "a mean by itself": lambda x, y: (lambda mean: mean * (mean + 1.0))(tf.reduce_mean(errors(x, y))),
    "a correlation": correlated,
    "weights by the batch's labels": balanced,
    "an advantage": with_baseline,
    "a mean vector": lambda x, y: tf.reduce_sum(tf.square(tf.reduce_mean(hidden(x), axis=0))),
    "its norm": lambda x, y: tf.norm(tf.reduce_mean(hidden(x), axis=0)),
    "inputs by their mean": lambda x, y: tf.reduce_mean(errors(x - tf.reduce_mean(x, axis=0), y)),
    "inputs by their largest": lambda x, y: tf.reduce_mean(errors(x / tf.reduce_max(tf.abs(x)), y)),
    "a softmax over rows": lambda x, y: tf.reduce_sum(tf.nn.softmax(model(x), axis=0) * errors(x, y)),
    "the worst": lambda x, y: tf.reduce_max(errors(x, y)),
    "the worst four": lambda x, y: tf.reduce_mean(tf.math.top_k(errors(x, y)[:, 0], 4).values),
    "sorted": lambda x, y: tf.reduce_mean(tf.sort(errors(x, y)[:, 0])[-4:]),
    "reversed": lambda x, y: tf.reduce_mean(errors(0.5 * x + 0.5 * tf.reverse(x, [0]), y)),
    "rolled": lambda x, y: tf.reduce_mean(tf.square(model(x) - model(tf.roll(x, 1, axis=0)))),
    "differences": lambda x, y: tf.reduce_mean(tf.square(model(x)[1:] - model(x)[:-1])),
    "summed up": lambda x, y: tf.reduce_mean(tf.cumsum(errors(x, y), axis=0)),
    "mixed up": mixed_up,
    "halves": halves,
    "centres": of_centres,
    "pairs": of_pairs,
    "dice": dice,
    "chosen rows": lambda x, y: tf.reduce_mean(tf.boolean_mask(errors(x, y)[:, 0], y[:, 0] > 0.5)),
}

APART = {
    "a mean": lambda x, y: tf.reduce_mean(errors(x, y)),
    "a sum": lambda x, y: tf.reduce_sum(errors(x, y)) / 12.0,
    "one over the rows": lambda x, y: tf.reduce_sum(errors(x, y)) * (1.0 / tf.cast(tf.shape(x)[0], tf.float32)),
    "weighed": lambda x, y: tf.reduce_sum((1 + y) * errors(x, y)) / tf.reduce_sum(1 + y),
    "by columns": lambda x, y: tf.reduce_sum(tf.reduce_mean(tf.square(hidden(x)), axis=0)),
    "a penalty": lambda x, y: tf.reduce_mean(errors(x, y)) + 0.01 * tf.nn.l2_loss(W),
    "entropy": lambda x, y: tf.reduce_mean(errors(x, y)) + tf.reduce_mean(tf.nn.log_softmax(hidden(x))),
    "noise": lambda x, y: tf.reduce_mean(errors(x + tf.random.normal(tf.shape(x)), y)),
    "reshaped": lambda x, y: tf.reduce_mean(errors(tf.reshape(x, [x.shape[0], 1, 5])[:, 0], y)),
    "both below one another": lambda x, y: tf.reduce_mean(tf.split(model(tf.concat([x, 2 * x], 0)), 2)[1]),
    "a mask of each": lambda x, y: tf.reduce_mean(
        errors(x * tf.cast(tf.sequence_mask(tf.cast(4 * y[:, 0] + 1, tf.int32), 5), tf.float32), y)
    ),
}


def recorded(loss):
    recorder = replay.Recorder()
    recorder.begin([X, Y], ROWS)
    try:
        with tf.GradientTape() as tape:
            value = loss(X, Y)
        recorder.note_target(value)
        with replay.paused():
            tape.gradient(value, [W, V])
    finally:
        recorder.end()
    return recorder


@pytest.mark.parametrize("name", MEETINGS)
def test_rows_that_meet_in_eager_code_are_seen(name):
    assert recorded(MEETINGS[name]).rows_meet(GIVEN)


@pytest.mark.parametrize("name", APART)
def test_rows_that_are_apart_in_eager_code_stay_so(name):
    recorder = recorded(APART[name])
    recorder._as_graph(GIVEN)  # it can be told
    assert not recorder.rows_meet(GIVEN)


def graph_of(loss):
    """The graph of `loss`, and what the loss is in it, for 107 rows; None where it cannot be traced for so many."""
    found = []

    def step(x, y):
        value = loss(x, y)
        found.append(reductions.analyse(value))
        return value

    specs = [tf.TensorSpec([GIVEN, *part.shape[1:]], part.dtype) for part in (X, Y)]
    try:
        return tf.function(step, autograph=False).get_concrete_function(*specs).graph, found[0]
    except ValueError:
        return None


@pytest.mark.parametrize("name", MEETINGS)
def test_rows_that_meet_in_a_function_are_seen(name):
    traced = graph_of(MEETINGS[name])
    if traced is None:
        assert name == "halves"
        return
    graph, found = traced
    inexact = found.bent or (found.ratios and found.denominator is None)
    assert meetings.knows_rows(graph) or meetings.rows_meet(graph, GIVEN, set()) or inexact


@pytest.mark.parametrize("name", APART)
def test_rows_that_are_apart_in_a_function_stay_so(name):
    graph, found = graph_of(APART[name])
    assert not (meetings.knows_rows(graph) or meetings.rows_meet(graph, GIVEN, set()) or found.bent)
    assert found.kind == ("sum" if name == "a sum" else "mean")


@tf.function
def inside(x):
    return model(x)


def test_functions_that_eager_code_calls_are_looked_into():
    def meets(x, y):
        share, p = tf.reduce_mean(y), tf.sigmoid(inside(x))
        return -tf.reduce_mean(y * (1 - share) * tf.math.log(p) + (1 - y) * share * tf.math.log(1 - p))

    assert recorded(meets).rows_meet(GIVEN)
    apart = recorded(lambda x, y: tf.reduce_mean(tf.square(inside(x) - y)))
    apart._as_graph(GIVEN)  # it can be told
    assert not apart.rows_meet(GIVEN)


def test_a_shape_that_python_computed_leaves_it_open():
    recorder = recorded(lambda x, y: tf.reduce_mean(tf.slice(x, [0, 0], [12, 3])) * tf.reduce_mean(model(x)))
    recorder._ops = [op._replace(kind="NoSuchOp") if op.kind == "Slice" else op for op in recorder._ops]
    assert not recorder.rows_meet(GIVEN)


def test_a_loop_within_a_loop_leaves_the_outer_one_its_targets():
    outer, inner = replay.Recorder(), replay.Recorder()
    outer.begin([X, Y], ROWS)
    inner.begin([tf.identity(X)], ROWS)
    assert replay.current() is inner
    inner.end()
    assert replay.current() is outer
    outer.end()
    assert replay.current() is None


def test_nothing_is_recorded_after_the_end():
    recorder = recorded(MEETINGS["the worst"])
    before = len(recorder._ops)
    tf.square(X)
    assert len(recorder._ops) == before > 0 and replay.current() is None
