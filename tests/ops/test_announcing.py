"""An overlapped update is announced before its gradients are computed, but never before an older collective."""

from __future__ import annotations

import pytest
import tensorflow as tf

from matex_tf.ops import overlap, readiness
from matex_tf.ops.library import library
from matex_tf.ops.order import order_handles
from matex_tf.ops.overlap import OP_TYPES


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setattr(readiness, "threads", lambda: 1)


@pytest.fixture
def weights():
    return [tf.Variable(2.0), tf.Variable(3.0), tf.Variable(5.0)]


def collective(x, place):
    return library().ops.matex_allreduce(x=x, order=order_handles(), reduction="sum", place=place)


def normalised(x):
    """Something with a collective forwards and one backwards."""

    @tf.custom_gradient
    def layer(x):
        return collective(x, "forwards"), lambda dy: collective(dy, "backwards")

    return layer(x)


def update(found, weight=1.0):
    names = [f"gradient {index}" for index in range(len(found))]
    return overlap.reduce_gradients(
        found, names, tf.convert_to_tensor(weight, tf.float64), "update", False, [0] * len(found)
    )


def waits(step):
    """Of a function: what waits for what, as a function; its announcement; the gradients in the order given."""
    graph = step.get_concrete_function().graph
    known, path = {}, set()

    def before(op):
        if op not in known:
            assert op not in path, f"{op.name} waits for itself"
            path.add(op)
            known[op] = set()
            for other in [*(tensor.op for tensor in op.inputs), *op.control_inputs]:
                known[op] |= before(other) | {other}
            path.remove(op)
        return known[op]

    for op in graph.get_operations():
        before(op)
    (announcement,) = [op for op in graph.get_operations() if op.type == OP_TYPES[0]]
    gradients = [op.inputs[0].op for op in graph.get_operations() if op.type == OP_TYPES[1]]
    return before, announcement, gradients


def test_it_comes_before_the_gradients_and_after_what_is_no_gradient(weights):
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = normalised(weights[0] * 1.0) * weights[1] * weights[2]
        return update([*tape.gradient(loss, weights)[::-1], loss])

    before, announcement, (last, middle, first, loss) = waits(step)
    # The first layer's gradient alone comes after the collective backwards.
    assert announcement in before(first) and announcement not in before(middle) and announcement not in before(last)
    places = {op.get_attr("place") for op in before(announcement) if op.type == "MatexAllreduce"}
    assert places == {b"forwards", b"backwards"}


def test_without_collectives_it_comes_before_all_gradients(weights):
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = weights[0] * weights[1] * weights[2]
        return update([*tape.gradient(loss, weights)[::-1], loss])

    before, announcement, gradients = waits(step)
    assert all(announcement in before(gradient) for gradient in gradients)


def test_it_waits_for_what_its_weight_is_made_of(weights):
    """The weight is read after the backward pass has written to its variable: that gradient cannot wait for it."""
    share = tf.Variable(1.0, dtype=tf.float64)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = weights[0] * weights[1]
        found = tape.gradient(loss, weights[:2])
        share.assign(tf.cast(found[1], tf.float64))
        return update(found, share.read_value())

    before, announcement, (_, second) = waits(step)
    assert second in before(announcement)


def test_with_several_threads_nothing_waits_for_it(weights, monkeypatch):
    monkeypatch.setattr(readiness, "threads", lambda: 2)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = weights[0] * weights[1]
        return update(tape.gradient(loss, weights[:2]))

    before, announcement, gradients = waits(step)
    assert not any(announcement in before(gradient) for gradient in gradients)
