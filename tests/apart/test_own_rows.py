"""For `local:H`: a rank can run a step by itself if the collectives of the step are sums."""

import pytest
import tensorflow as tf

from matex_tf.apart import own_rows
from matex_tf.rewrite.placement import BATCH, WHOLE
from matex_tf.rewrite.propagate import read_program

BANK = tf.Variable(tf.zeros([8, 3]), shape=tf.TensorShape([None, 3]))
TOTAL = tf.Variable(0.0)


def in_branch(x, use):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: use(x), lambda: tf.zeros([]))


def branch_or(x, number, other):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: number, lambda: tf.constant(other))


def count(x):
    return tf.reduce_sum(tf.cast(x[:, 0] > 0, tf.int32))


STEPS = {
    "a mean": (lambda x: tf.reduce_mean(x), True),
    "a square of a mean": (lambda x: tf.reduce_mean(x) ** 2, True),
    "a sum in a branch": (lambda x: in_branch(x, lambda x: tf.reduce_sum(x) ** 2), True),
    "a maximum that is used": (lambda x: tf.reduce_max(x) ** 2, False),
    "a maximum that is returned": (lambda x: tf.reduce_max(x), False),
    "a maximum in a branch": (lambda x: in_branch(x, lambda x: tf.reduce_max(x) ** 2), False),
    "whether all are positive, in a branch": (
        lambda x: in_branch(x, lambda x: tf.where(tf.reduce_all(x > 0), 1.0, 2.0)),
        False,
    ),
    "rows that are gathered in a branch": (lambda x: in_branch(x, lambda x: tf.reduce_sum(tf.sort(x, 0)[0])), False),
    "rows that a branch gathers for its result": (
        lambda x: tf.reduce_sum(
            tf.cond(tf.reduce_sum(x) > 0, lambda: tf.boolean_mask(x, x[:, 0] > 0), lambda: tf.sort(x, 0))
        ),
        False,
    ),
    "a sum of gathered rows": (lambda x: tf.reduce_sum(tf.sort(x, 0)), True),
    "gathered rows that are returned": (lambda x: tf.sort(x, 0), False),
    "gathered rows that are kept": (lambda x: BANK.assign(tf.sort(x, 0)), False),
    "a sum of gathered rows that is kept": (lambda x: TOTAL.assign_add(tf.reduce_sum(tf.sort(x, 0))), True),
    "rows that are returned": (lambda x: x * 2, False),
    "a number for a sum in a branch": (lambda x: branch_or(x, tf.reduce_sum(x), 7.0), True),
    "an integer for a sum in a branch": (lambda x: branch_or(x, count(x), 7), False),
    "zero for a sum of integers in a branch": (lambda x: branch_or(x, count(x), 0), True),
    "a number that is drawn": (lambda x: tf.reduce_sum(x) * tf.random.uniform([]), True),
    "an integer that is drawn": (lambda x: count(x) * tf.random.uniform([], 0, 9, tf.int32), False),
}


@pytest.mark.parametrize("rows", [None, 8])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_sums_alone_can_run_by_itself(name, rows):
    step, can = STEPS[name]
    tf.random.set_seed(None)  # no seed for the numbers that are drawn, whatever ran before in this process
    graph = tf.function(step).get_concrete_function(tf.TensorSpec([rows, 3])).graph
    program = read_program(graph, [BATCH] + [WHOLE] * (len(graph.inputs) - 1))
    assert (own_rows.find_obstacle(program) == "") == can
