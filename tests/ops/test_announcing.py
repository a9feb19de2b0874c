"""An overlapped update is announced before the backward pass, in one order with the other collectives."""

from __future__ import annotations

import pytest
import tensorflow as tf

from matex_tf.ops import announcing, overlap, readiness
from matex_tf.ops.library import library
from matex_tf.ops.order import order_handles
from matex_tf.ops.overlap import OP_TYPES


def collective(x, name, late=False):
    y = library().ops.matex_allreduce(x=x, order=order_handles(), reduction="sum", place=name)
    if late:
        announcing.note_in_backward_pass(y)
    return y


def normalised(x, name):
    """Something with a collective forwards and one backwards."""

    @tf.custom_gradient
    def layer(x):
        return collective(x, f"forwards {name}"), lambda dy: collective(dy, f"backwards {name}", late=True)

    return layer(x)


def update(tape, loss, weights, name, weight=1.0):
    found = tape.gradient(loss, weights)[::-1]
    names = [f"{name} {index}" for index in range(len(found))]
    return overlap.reduce_gradients(
        found, names, tf.convert_to_tensor(weight, tf.float64), name, False, [0] * len(found)
    )


def places(function):
    """For each collective of the function, by its place, those that must have run before it."""
    graph = function.get_concrete_function().graph
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

    ops = [op for op in graph.get_operations() if op.type.startswith("Matex") and "place" in op.node_def.attr]
    name = {}
    for op in ops:
        place = op.get_attr("place").decode()
        name[op] = f"{place} again" if place in name.values() else place
    gradients = [op for op in graph.get_operations() if op.type == OP_TYPES[1]]
    return {name[op]: {name[one] for one in before(op) if one in name} for op in ops}, gradients, before


def in_one_order(found):
    """Their names in the order in which they run, if there is one alone."""
    order = sorted(found, key=lambda name: len(found[name]))
    assert [len(found[name]) for name in order] == list(range(len(order))), found
    return order


@pytest.fixture
def weights():
    return [tf.Variable(2.0), tf.Variable(3.0), tf.Variable(5.0)]


@pytest.mark.parametrize("threads", [1, 4])
def test_an_update_comes_before_the_collectives_of_its_backward_pass(weights, threads, monkeypatch):
    monkeypatch.setattr(readiness, "threads", lambda: threads)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            x = normalised(weights[0] * 1.0, "a")
            x = normalised(x * weights[1], "b")
            loss = x * weights[2]
        reduced = update(tape, loss, weights, "update")
        collective(loss, "metrics")
        return reduced

    found, gradients, before = places(step)
    order = ["forwards a", "forwards b", "update", "backwards b", "backwards a", "metrics"]
    assert in_one_order(found) == order


def test_several_updates_of_one_step(weights):
    @tf.function
    def step():
        with tf.GradientTape(persistent=True) as tape:
            first = normalised(weights[0] * weights[1], "a")
            second = normalised(first * weights[2], "b")
        one = update(tape, first, weights[:2], "update 1")
        other = update(tape, second, weights, "update 2")
        collective(second, "metrics")
        return one, other

    found, *_ = places(step)
    order = ["forwards a", "forwards b", "update 1", "backwards a", "update 2", "backwards b", "backwards a again"]
    assert in_one_order(found) == [*order, "metrics"]


def test_a_weight_that_needs_the_backward_pass_comes_after_it(weights):
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = normalised(weights[0] * weights[1], "a")
        found = tape.gradient(loss, weights[:2])
        weight = tf.cast(collective(found[0], "the weight", late=True), tf.float64)
        return overlap.reduce_gradients(found, ["x", "y"], weight, "update", False, [0, 0])

    found, *_ = places(step)
    assert in_one_order(found) == ["forwards a", "backwards a", "the weight", "update"]


def test_one_thread_announces_before_the_first_gradient(weights, monkeypatch):
    """Else it may well come last: nothing that the step computes needs it."""
    monkeypatch.setattr(readiness, "threads", lambda: 1)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = x * weights[0] * weights[1] * weights[2]
        return update(tape, loss, weights, "update")

    graph = step.get_concrete_function(tf.constant(1.0)).graph
    (announcement,) = [op for op in graph.get_operations() if op.type == OP_TYPES[0]]
    gradients = [op.inputs[0].op for op in graph.get_operations() if op.type == OP_TYPES[1]]
    number = {op: position for position, op in enumerate(graph.get_operations())}
    assert announcement in min(gradients, key=number.get).control_inputs


def test_what_shares_a_variable_with_the_weight_may_come_before_it(weights, monkeypatch):
    """The weight is read after the backward pass has written to its variable: no gradient can wait for that."""
    monkeypatch.setattr(readiness, "threads", lambda: 1)
    share = tf.Variable(1.0, dtype=tf.float64)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = weights[0] * weights[1]
        found = tape.gradient(loss, weights[:2])
        share.assign(tf.cast(found[1], tf.float64))
        return overlap.reduce_gradients(found, ["x", "y"], share.read_value(), "update", False, [0, 0])

    *_, before = places(step)
    (announcement,) = [op for op in step.get_concrete_function().graph.get_operations() if op.type == OP_TYPES[0]]
    assert any(op.type == "AssignVariableOp" for op in before(announcement))
