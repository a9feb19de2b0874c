"""Gradients are known by their variables where they are summed, whatever a step makes of them before and after."""

import numpy as np
import pytest
import tensorflow as tf

from matex_tf.rewrite import labels, sources, waves
from matex_tf.rewrite.placement import BATCH, WHOLE, PieceHandle
from matex_tf.rewrite.propagate import read_program
from matex_tf.steps import gradients

WIDTH = 3
STATE = tf.Variable(1.0, trainable=False)


def trace(make_update, make_loss=None, place=lambda graph: [WHOLE] * len(graph.captures)):
    """The program of a step that trains a kernel and a scale, and the variables."""
    kernel, scale = tf.Variable(tf.ones([WIDTH, 2]), name="kernel"), tf.Variable(tf.ones([2]), name="scale")

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = (make_loss or (lambda x, kernel, scale: tf.reduce_mean((x @ kernel * scale) ** 2)))(x, kernel, scale)
        found = tape.gradient(loss, [kernel, scale])
        gradients.note_gradients(found, [kernel, scale])
        for variable, gradient in zip((kernel, scale), make_update(found)):
            variable.assign_sub(gradient)
        return loss

    graph = step.get_concrete_function(tf.TensorSpec([None, WIDTH])).graph
    return read_program(graph, [BATCH, *place(graph)]), (kernel, scale)


def trace_on_batches():
    """The program of a step that takes its batch from an iterator; the batch is given to the program. Its kernel."""
    kernel = tf.Variable(tf.ones([WIDTH, 2]), name="kernel")

    @tf.function
    def step(iterator):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((next(iterator) @ kernel) ** 2)
        found = tape.gradient(loss, [kernel])
        gradients.note_gradients(found, [kernel])
        kernel.assign_sub(found[0])

    graph = step.get_concrete_function(iter(tf.data.Dataset.from_tensors(tf.ones([4, WIDTH])))).graph
    given = sources.give_batch(graph, sources.find_source(graph))
    return read_program(given, [WHOLE] * len(graph.inputs) + [BATCH], takes_batches=False), kernel


def name_sums(program):
    """For each wave of the copy the names of the variables whose gradients it sums, and how many other sums it has."""
    exchanges = waves.schedule(program)
    labels.label_waves(program, exchanges)
    found = [[one.label for one in wave] for wave in exchanges]
    return [(sorted(one.name for one in wave if one), sum(one is None for one in wave)) for wave in found]


UPDATES = {
    "plain": lambda found: [0.1 * one for one in found],
    "clipped": lambda found: tf.clip_by_global_norm(found, 1.0)[0],
    "with a penalty": lambda found: [one + 0.1 for one in found],
    "scaled": lambda found: [tf.where(tf.reduce_all(tf.math.is_finite(one)), one, 0.0) for one in found],
}


@pytest.mark.parametrize("update", UPDATES)
def test_sums_have_the_names_of_variables(update):
    program, _ = trace(UPDATES[update])
    assert sorted(name for names, _ in name_sums(program) for name in names) == ["kernel", "scale"]
    assert name_sums(program)[-1] == (["kernel", "scale"], 1), "the loss travels with the gradients"
    assert labels.checks_labelled(program, ("IsFinite",)) == (update == "scaled")


@pytest.mark.parametrize("update", ["plain", "clipped"])
def test_sums_of_which_ranks_need_pieces_have_the_names_of_variables(update):
    """They are the update, and the loss travels with them, though new weights travel later, and norms of pieces."""
    slots = [tf.Variable(tf.zeros([WIDTH, 2])), tf.Variable(tf.zeros([2]))]

    def momentum(found):
        return [slot.assign(0.9 * slot + one) for slot, one in zip(slots, UPDATES[update](found))]

    def place(graph):
        numbers = {id(slot.handle): number for number, slot in enumerate(slots)}
        sizes = {number: slot.shape.num_elements() for number, slot in enumerate(slots)}
        held = [numbers.get(id(outer)) for outer, _ in graph.captures]
        return [WHOLE if one is None else PieceHandle((0, sizes[one] // 2, sizes[one]), one) for one in held]

    program, _ = trace(momentum, place=place)
    first, *others = name_sums(program)
    assert first == (["kernel", "scale"], 1) and len(others) == 1 + (update == "clipped")
    assert all(names == [] for names, _ in others)


def test_sums_have_the_names_of_variables_where_the_batch_is_taken_before_the_step():
    program, _ = trace_on_batches()
    assert name_sums(program) == [(["kernel"], 0)]


def test_statistics_of_the_batch_are_no_gradients_though_gradients_are_made_of_them():
    def normalize(x, kernel, scale):
        out = x @ kernel
        mean, variance = tf.nn.moments(out, [0])
        return tf.reduce_mean(tf.abs((out - mean) * tf.math.rsqrt(variance + 1e-3) * scale) ** 3)

    program, _ = trace(UPDATES["plain"], normalize)
    *first, last = name_sums(program)
    assert sorted(name for names, _ in [*first, last] for name in names) == ["kernel", "scale"]
    assert "kernel" in last[0] and first[0] == ([], 1)


def test_a_gradient_is_known_within_a_branch():
    def accumulate(found):
        taken = tf.cond(
            tf.reduce_sum(STATE) > 1, lambda: [one / 2 for one in found], lambda: [0 * one for one in found]
        )
        return list(taken)

    program, _ = trace(accumulate)
    names = [name for names, _ in name_sums(program) for name in names]
    for node in program.nodes:
        names += [value.label.name for body in node.bodies for value in body.inputs if value.label is not None]
    assert set(names) == {"kernel", "scale"}


def test_a_sum_of_indexed_slices_is_of_their_variable():
    table = tf.Variable(tf.ones([10, 2]), name="table")

    @tf.function
    def step(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.gather(table, rows) ** 2)
        found = tape.gradient(loss, table)
        gradients.note_gradients(found, table)
        table.assign_sub(tf.convert_to_tensor(found))

    graph = step.get_concrete_function(tf.TensorSpec([None], tf.int32)).graph
    program = read_program(graph, [BATCH] + [WHOLE] * (len(graph.inputs) - 1))
    assert [name for names, _ in name_sums(program) for name in names] == ["table"]


def test_a_variable_has_one_number_as_long_as_it_lives():
    first, second = tf.Variable(1.0), tf.Variable(1.0)
    numbers = [gradients.make_label(one).number for one in (first, second, first)]
    assert numbers[0] == numbers[2] != numbers[1] and min(numbers) > 0
    tensors = [tf.constant(np.ones(1)), tf.constant(np.ones(1)), tf.constant(np.ones(1))]
    with tf.Graph().as_default():
        tensors = [tf.zeros([]) for _ in tensors]
    label = gradients.make_label(first)
    assert gradients.name_sums(tensors, [label, None, label])[1] == [label.number, 0, 0]
