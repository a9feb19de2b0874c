"""A batch that a step takes from an iterator by itself, maybe in a function that it calls, is sharded."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest
import tensorflow as tf

from matex_tf.rewrite.placement import BATCH, WHOLE, Partial, Replicated, Sharded
from matex_tf.rewrite.propagate import read_program
from matex_tf.rewrite.sources import find_source, give_batch, is_batch


def _take(iterator):
    return tf.reduce_sum(next(iterator), 0)


@pytest.mark.parametrize("step", [_take, lambda iterator: tf.function(_take)(iterator)], ids=["itself", "in a call"])
def test_what_an_iterator_gives_has_the_placement_of_its_source(step):
    iterator = iter(tf.data.Dataset.from_tensor_slices(tf.ones([4, 3])).batch(4))
    graph = tf.function(step, autograph=False).get_concrete_function(iterator).graph
    placements = [WHOLE] * len(graph.inputs)
    assert isinstance(read_program(graph, placements).outputs[0].placement, Partial)
    assert isinstance(read_program(graph, placements, takes_batches=False).outputs[0].placement, Replicated)


def test_a_batch_whose_rows_are_only_counted_is_taken():
    """The rank's slice, from which the numbers of rows follow, is that of the batch."""

    def make_noise(iterator):
        batch = iterator.get_next_as_optional().get_value()
        return tf.ones([tf.shape(batch)[0], 3]) @ tf.ones([3, 3])

    iterator = iter(tf.data.Dataset.from_tensor_slices(tf.ones([9, 3])).batch(4))
    graph = tf.function(make_noise, autograph=False).get_concrete_function(iterator).graph
    program = read_program(graph, [WHOLE] * len(graph.inputs))
    assert isinstance(program.outputs[0].placement, Sharded)
    assert program.takes_batch
    assert [node.type for node in program.nodes if is_batch(node)] == ["OptionalGetValue"]


def _wait(iterator):
    with tf.control_dependencies([tf.print("first")]):
        return next(iterator)


@pytest.mark.parametrize(
    "step, is_found",
    [
        (_take, True),
        (lambda iterator: (next(iterator), next(iterator)), True),
        (lambda iterator: tf.function(_take)(iterator), False),
        (lambda iterator: tf.cond(tf.random.uniform([]) < 1, lambda: next(iterator), lambda: tf.ones([4, 3])), False),
        (lambda iterator: (iterator.get_next_as_optional().has_value(), next(iterator)), False),
        (lambda iterator: next(iter(tf.data.Dataset.range(8).batch(2))), False),
        (_wait, False),
    ],
    ids=["itself", "the first of two", "in a call", "in a branch", "after another op", "its own iterator", "waits"],
)
def test_a_batch_that_is_taken_before_all_else_is_found(step, is_found):
    iterator = iter(tf.data.Dataset.from_tensor_slices(tf.ones([9, 3])).batch(4))
    graph = tf.function(step, autograph=False).get_concrete_function(iterator).graph
    takers = [op for op in graph.get_operations() if op.type == "IteratorGetNext"]
    assert find_source(graph) is (takers[0] if is_found else None)


def test_a_graph_whose_batch_is_given_does_not_take_it():
    iterator = iter(tf.data.Dataset.from_tensor_slices(tf.ones([9, 3])).batch(4))
    graph = tf.function(_take, autograph=False).get_concrete_function(iterator).graph
    given = give_batch(graph, find_source(graph))
    program = read_program(given, [WHOLE, BATCH], takes_batches=False)
    assert isinstance(program.outputs[0].placement, Partial)
    assert not [node for node in program.nodes if node.type == "IteratorGetNext"]
