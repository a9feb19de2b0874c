"""Gradients become ready one after the other where one thread runs all ops of a step."""

from __future__ import annotations

import subprocess
import sys

import pytest
import tensorflow as tf

from matex_tf.ops import readiness

# The ops of a backward pass, in the order in which one thread runs them.
RECORDED = """
import sys
import tensorflow as tf
from matex_tf.ops import readiness

tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(1)
ran, count = [], 8

def recorded(name, x):
    def record(x):
        ran.append(name)
        return x
    return tf.ensure_shape(tf.numpy_function(record, [x], x.dtype, stateful=False), x.shape)

def layer(index, x, w):
    @tf.custom_gradient
    def forward(x, w):
        return x * w, lambda dy: (recorded(f"x{index}", dy * w), recorded(f"w{index}", dy * x))
    return forward(x, w)

variables = [tf.Variable(float(index + 1)) for index in range(count)]

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        for index, variable in enumerate(variables):
            x = layer(index, x, variable)
        loss = recorded("loss", x)
    gradients = tape.gradient(x, variables)
    if sys.argv[1] == "ordered":
        readiness.chain_gradients([*gradients[::-1], loss])
    return gradients, loss

found = [float(gradient) for gradient in step(tf.constant(2.0))[0]]
product = 2.0
for variable in variables:
    product *= float(variable)
assert found == [product / float(variable) for variable in variables], found
print(" ".join(name for name in ran if name != "x0"))
"""


def ran(way):
    child = subprocess.run([sys.executable, "-c", RECORDED, way], capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stderr
    return child.stdout.split()


def test_weights_do_not_wait_for_the_end_of_the_pass():
    order = ran("ordered")
    assert order.pop(0) == "loss", order  # it was made first
    assert sorted(order) == sorted([f"w{index}" for index in range(8)] + [f"x{index}" for index in range(1, 8)])
    for index in range(2, 8):
        assert order.index(f"w{index}") < order.index(f"x{index - 1}"), order


def test_without_it_they_do():
    """What it is for: should TensorFlow's own order become as good, it can go."""
    order = ran("as it is")
    assert any(order.index(f"w{index}") > order.index(f"x{index - 1}") for index in range(2, 8)), order


@pytest.fixture
def one_thread(monkeypatch):
    monkeypatch.setattr(readiness, "count_threads", lambda: 1)


def test_branches_with_variables_that_both_write(one_thread):
    """An op waits for none that was made after it: what shares a variable waits in the order in which it was made."""
    calls = tf.Variable(0, trainable=False)
    weights = [tf.Variable(2.0), tf.Variable(3.0)]

    def counted(x):
        @tf.custom_gradient
        def forward(x):
            with tf.control_dependencies([calls.assign_add(1)]):
                y = tf.identity(x)

            def backward(dy):
                with tf.control_dependencies([calls.assign_add(10)]):
                    return tf.identity(dy)

            return y, backward

        return forward(x)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            first, second = counted(weights[0] * 2.0), counted(weights[1] * 5.0)
            loss = counted(first) * 1.0 + counted(second) * 1.0
        gradients = tape.gradient(loss, weights)
        readiness.chain_gradients(gradients)
        return gradients

    for _ in range(3):
        assert [float(gradient) for gradient in step()] == [2.0, 5.0]
    assert int(calls) == 3 * 44


@pytest.mark.parametrize("threads, ordered", [(1, True), (2, False)])
def test_several_threads_need_no_order(monkeypatch, threads, ordered):
    monkeypatch.setattr(readiness, "count_threads", lambda: threads)
    weights = [tf.Variable(tf.ones([3, 3])) for _ in range(4)]

    def controls(order):
        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                for weight in weights:
                    x = tf.tanh(x @ weight)
            gradients = tape.gradient(x, weights)
            if order:
                readiness.chain_gradients(gradients[::-1])
            return gradients

        graph = step.get_concrete_function(tf.ones([2, 3])).graph
        return sum(len(op.control_inputs) for op in graph.get_operations())

    assert (controls(True) > controls(False)) == ordered


def test_gradients_of_an_outer_function_are_left_alone(one_thread):
    weight = tf.Variable([1.0, 2.0])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight**2)
        gradient = tape.gradient(loss, weight)

        @tf.function
        def inner():
            readiness.chain_gradients([gradient, tf.ones([2])])
            return gradient * 1.0

        return inner()

    assert step().numpy().tolist() == [2.0, 4.0]


def test_a_loop_and_a_branch_that_share_a_collective_s_order(one_thread):
    """The gradient of a loop adds inputs to the loop that were created after it; they must not wait for its results."""
    state = tf.Variable(0.0, trainable=False)
    weights = [tf.Variable(2.0), tf.Variable(3.0)]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            looped = tf.constant(1.0)
            for _ in tf.range(3):
                state.assign_add(1.0)
                looped = looped * weights[0]
            with tf.control_dependencies([state.assign_add(10.0)]):
                other = weights[1] * tf.identity(state)
            loss = other + looped
        order = announcing._Order(tf.compat.v1.get_default_graph(), tf.compat.v1.get_default_graph().capture(handle))
        gradients = tape.gradient(loss, weights)
        readiness.chain_gradients(gradients[::-1], order.list_sources, order.find_position)
        return gradients

    from matex_tf.ops import announcing
    from matex_tf.ops.order import list_order_handles

    handles = []
    tf.function(lambda: handles.extend(list_order_handles()) or tf.constant(0))()
    (handle,) = handles
    for turn in range(2):
        assert [float(gradient) for gradient in step()] == [12.0, 13.0 * (turn + 1)]
