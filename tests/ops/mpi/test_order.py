"""Collectives of functions run in the order in which they were made, also within nested functions (rule 8)."""

import time

import numpy as np
import pytest
import tensorflow as tf

from matex_tf import ops
from matex_tf.world import world

pytestmark = pytest.mark.mpi


def slow_on(rank):
    """An identity function that takes 0.3 s on one rank, and no time on the others."""

    def wait(x):
        if world.get_world().rank == rank:
            time.sleep(0.3)
        return x

    return lambda x: tf.ensure_shape(tf.numpy_function(wait, [x], tf.float32, stateful=False), x.shape)


def test_nested_functions_keep_their_order():
    first_is_slow, second_is_slow = slow_on(0), slow_on(1)
    # TensorFlow orders calls of functions that share a resource; these two share no variable of the script.
    one, other = tf.Variable(1.0), tf.Variable(1.0)

    @tf.function
    def first(x):
        return ops.allreduce(first_is_slow(x) * one, "sum")

    @tf.function
    def second(x):
        return ops.reduce_gradients([second_is_slow(x) * other], ["b"], tf.constant(1.0, tf.float64), "second")[0]

    @tf.function
    def both(x, y):
        return first(x), second(y)

    for _ in range(3):
        a, b = both(tf.ones([4]), tf.ones([7]))
    # With one thread they would run in order by chance, so check the control dependency.
    graph = both.get_concrete_function(tf.ones([4]), tf.ones([7])).graph
    calls = [op for op in graph.get_operations() if "PartitionedCall" in op.type]
    assert calls[0] in calls[1].control_inputs or world.get_world().size == 1
    size = world.get_world().size
    np.testing.assert_array_equal(a, np.full(4, size))
    np.testing.assert_array_equal(b, np.full(7, size))


def test_branches_of_one_function_keep_their_order():
    slow, quick = slow_on(0), slow_on(1)

    @tf.function
    def step(x):
        left = ops.allreduce(slow(x), "sum")
        right = ops.allreduce(quick(tf.concat([x, x], 0)), "sum")
        return tf.reduce_sum(left) + tf.reduce_sum(right)

    assert float(step(tf.ones([3]))) == 9 * world.get_world().size


def test_gradients_pass_through_ordered_ops():
    @tf.function
    def derivative(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(ops.allreduce(x, "sum") ** 2)
        return tape.gradient(y, x)

    size = world.get_world().size
    # The differentiated scalar is the sum over ranks: `size` squares of sums over `size` equal tensors.
    np.testing.assert_allclose(derivative(tf.ones([3])), np.full(3, 2.0 * size * size))


def derivative_of(y_of):
    """The derivative of the sum of `y_of(x)`, as a function."""

    @tf.function
    def derivative(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(y_of(x))
        return tape.gradient(loss, x)

    return derivative


def mean_of_product(y, x):
    return ops.allreduce(y * x, "mean")


def loop(x):
    return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, mean_of_product(y, x)), [0, x])[1]


def branch(x):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: mean_of_product(x, x), lambda: x)


def branch_in_a_loop(x):
    def body(i, y):
        return i + 1, tf.cond(i > 0, lambda: mean_of_product(y, x), lambda: y)

    return tf.while_loop(lambda i, y: i < 3, body, [0, x])[1]


def loop_in_a_loop(x):
    def inner(y):
        return tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, mean_of_product(y, x)), [0, y])[1]

    return tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, inner(y)), [0, x])[1]


def function_in_a_branch(x):
    function = tf.function(mean_of_product)
    return tf.cond(tf.reduce_sum(x) > 0, lambda: function(function(x, x), x), lambda: x)


def function_in_a_loop(x):
    function = tf.function(mean_of_product)
    return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, function(y, x)), [0, x])[1]


@pytest.mark.parametrize(
    "y_of, power",
    [
        pytest.param(loop, 4, marks=pytest.mark.more),
        pytest.param(branch, 2, marks=pytest.mark.more),
        (branch_in_a_loop, 3),
        (loop_in_a_loop, 5),
        (function_in_a_branch, 3),
        pytest.param(function_in_a_loop, 4, marks=pytest.mark.more),
    ],
)
def test_gradients_pass_through_loops_and_branches(y_of, power):
    """`y_of(x)` is x to the power of `power`; x is equal on all ranks."""
    derivative, x = derivative_of(y_of), np.array([1.0, 2.0, 0.5], np.float32)
    for _ in range(2):
        np.testing.assert_allclose(derivative(tf.constant(x)), power * x ** (power - 1), rtol=1e-5)
    # The derivative's loop or branch is ordered with the forward one by the handle that both take.
    operations = derivative.get_concrete_function(tf.constant(x)).graph.get_operations()
    takes = [{tensor.name for tensor in op.inputs if tensor.dtype == tf.resource} for op in operations]
    if world.is_active():
        assert max(sum(name in names for names in takes) for name in set().union(*takes)) >= 2
