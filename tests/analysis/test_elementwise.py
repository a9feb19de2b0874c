"""An update is elementwise only if it takes single entries, and computes the same whatever the shapes are."""

import pytest

from matex_tf.analysis import elementwise

tf = pytest.importorskip("tensorflow")


def adam(variables, slots, gradients):
    for variable, slot, gradient in zip(variables, slots, gradients):
        slot.assign_add((gradient - slot) * 0.1)
        variable.assign_sub(0.01 * slot / (tf.sqrt(slot * slot) + 1e-7))


def with_a_norm(variables, slots, gradients):
    variables[0].assign_sub(gradients[0] / tf.norm(gradients[0]))


def with_a_length(variables, slots, gradients):
    variables[0].assign_sub(gradients[0] * (0.1 if len(gradients[0].shape) > 1 else 0.2))


def with_a_branch_on_shapes(variables, slots, gradients):
    if len(gradients[0].shape) > 1:
        variables[0].assign_sub(gradients[0])


def of_another(variables, slots, gradients):
    variables[0].assign_sub(slots[1] * gradients[0])


def assigned_to_another(variables, slots, gradients):
    variables[0].assign_sub(gradients[1])


def turned_round(variables, slots, gradients):
    variables[0].assign_sub(tf.reverse(gradients[0], [0]))


def drawn(variables, slots, gradients):
    variables[0].assign_sub(gradients[0] * tf.random.uniform([]))


def summed_up(variables, slots, gradients):
    variables[0].assign_sub(tf.cumsum(gradients[0]))


def traced(update, shape, open_shape):
    from tensorflow.python.framework import func_graph

    variables, slots = ([tf.Variable(tf.ones(shape), shape=open_shape) for _ in range(2)] for _ in range(2))
    specs = [tf.TensorSpec(open_shape)] * 2
    graph = func_graph.func_graph_from_py_func(
        "update", lambda *given: update(variables, slots, given), specs, {}, add_control_dependencies=False
    )
    graph.kept = variables, slots
    kinds = {"variable": variables, "slot": slots}
    return graph, {id(one._handle): (kind, at) for kind, ones in kinds.items() for at, one in enumerate(ones)}


def why_not(update):
    return elementwise.find_obstacle(*traced(update, [3, 3], [3, 3]), *traced(update, [4], [None]))


def test_an_elementwise_update_is_proved():
    assert why_not(adam) is None


@pytest.mark.parametrize(
    "update",
    [
        with_a_norm, with_a_length, with_a_branch_on_shapes, of_another, assigned_to_another, turned_round, drawn,
        summed_up,
    ],
)  # fmt: skip
def test_any_other_is_not(update):
    assert "its update" in why_not(update)
