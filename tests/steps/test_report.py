"""What is said of a step that ranks would gain nothing by sharing."""

import pytest
import tensorflow as tf

import launch
from matex_tf.rewrite.placement import BATCH, WHOLE
from matex_tf.rewrite.propagate import read_program
from matex_tf.steps import report

W = tf.Variable(tf.ones([4, 3]))


def add_parts(x):
    """The gradient of a batch, part by part: a slice at a place that is known only in the loop."""

    def add_part(at, total):
        return at + 1, total + tf.reduce_sum((x[at * 4 : at * 4 + 4] @ W) ** 2)

    return tf.while_loop(lambda at, total: at < 2, add_part, [tf.constant(0), tf.constant(0.0)])[1]


def map_rows(x):
    return tf.map_fn(lambda row: tf.linalg.matvec(W, row, transpose_a=True), x)


@pytest.mark.parametrize(
    "step, meeting",
    [
        (add_parts, "StridedSlice"),
        (map_rows, "TensorListFromTensor"),
        (lambda x: x + tf.reduce_sum(W), ""),
        (lambda x: tf.map_fn(lambda row: row + 1.0, x), ""),
    ],
)
def test_the_op_is_named_in_which_rows_meet_before_the_work(step, meeting):
    graph = tf.function(step).get_concrete_function(tf.TensorSpec([8, 4])).graph
    program = read_program(graph, [BATCH, *[WHOLE] * (len(graph.inputs) - 1)])
    assert not report.has_shared_work(program)
    found = report.explain_no_work(program)
    assert meeting in found if meeting else not found


BATCHES = """
import sys
import matex_tf, tensorflow as tf

w = tf.Variable(tf.ones([4, 3]))

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ w) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))

for rows in sys.argv[1:]:
    step(tf.ones([int(rows), 4]))
"""


@pytest.mark.parametrize("rows, is_told", [([4, 1], False), ([1, 1], True)])
def test_a_last_batch_of_one_row_is_no_reason_to_complain(rows, is_told):
    said = launch.run(2, BATCHES, *rows).check().stderr
    assert ("cannot be sharded" in said) == is_told
