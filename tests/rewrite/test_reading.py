"""A program is that of one reading, however it came about; what its copy registers goes with the copy."""

from __future__ import annotations

import gc
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import growing
import keras
import numpy as np
import pytest
import tensorflow as tf
from simulated_ranks import Exchanger, Meeting, Simulation, find_difference
from tensorflow.python.eager import context

from matex_tf.rewrite.emit import Copy
from matex_tf.rewrite.kept import trace_copy
from matex_tf.rewrite.nodes import Expansion, Value
from matex_tf.rewrite.placement import BATCH, WHOLE, PieceHandle, Replicated
from matex_tf.rewrite.propagate import Reader, find_needed_sums, read_program
from matex_tf.rewrite.rules import RULES
from matex_tf.rewrite.sharing import Slice


def _describe(program):
    return [
        (node.key, [one.key for one in node.inputs], [one.key for one in node.controls], list(node.decision.needs),
         [one.placement for one in node.outputs], [_describe(body) for body in node.bodies])
        for node in program.nodes
    ]  # fmt: skip


def _trace(function, arguments):
    specs = [tf.TensorSpec([None, *one.shape[1:]], one.dtype) for one in arguments]
    return tf.function(function, autograph=False).get_concrete_function(*specs).graph


def _take_both(x):
    """A sum that is needed whole, and kept; another that is so only once the first is whole; one in a loop."""
    total = tf.reduce_sum(x, 0)
    centred = x - total / 2.0
    spread = tf.reduce_sum(tf.square(centred), 0)
    turned = tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y - tf.reduce_sum(y, 0)), (0, x))[1]
    return total * 3.0, spread * 2.0, centred / spread, tf.math.exp(spread), turned


GROWN = [growing.grow(seed, 3)[:2] for seed in range(4)]


@pytest.mark.parametrize("function, arguments", [(_take_both, [tf.ones([4, 3])]), *GROWN])
def test_a_graph_that_is_read_again_is_read_as_if_for_the_first_time(function, arguments):
    graph = _trace(function, [tf.constant(one) for one in arguments])
    placements = [BATCH] * len(arguments) + [WHOLE] * len(graph.captures)
    program = read_program(graph, placements)
    afresh, whole = _read_afresh(graph, placements, {})
    while whole != (more := whole | find_needed_sums(afresh)):
        afresh, whole = _read_afresh(graph, placements, more)
    assert _describe(program) == _describe(afresh)
    assert whole or function is not _take_both


@pytest.mark.parametrize("of_rows", [tf.reduce_sum, tf.reduce_mean, lambda y: y])
def test_a_normalization_with_a_whole_gradient_keeps_its_rows(of_rows):
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            normal, *_ = tf.raw_ops.FusedBatchNormV3(
                x=x, scale=[1.0] * 3, offset=[0.0] * 3, mean=[], variance=[], is_training=True
            )
            made = of_rows(normal)
        return tape.gradient(made, x)

    graph = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec([8, 4, 4, 3])).graph
    program = read_program(graph, [BATCH], rows=8)
    assert program.outputs[0].placement == BATCH


def test_nodes_take_values_of_the_last_reading():
    """Where optimizer variables in pieces change the placement of a statistic, whose gradient is repeated for rows."""
    layers = [keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input((4, 4, 3)), *layers])
    optimizer = keras.optimizers.SGD(momentum=0.9)
    optimizer.build(model.trainable_variables)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    graph = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec([32, 4, 4, 3])).graph
    slots = {id(one.handle): one.shape.num_elements() for one in optimizer.variables[2:]}
    sizes = [slots.get(id(outer)) for outer, _ in graph.captures]
    held = [WHOLE if size is None else PieceHandle((0, size // 2, size), number) for number, size in enumerate(sizes)]
    program = read_program(graph, [BATCH, *held], rows=32)
    found = {id(value) for node in program.nodes for value in node.outputs}.union(map(id, program.inputs))
    inputs = [value for node in program.nodes for value in node.inputs if value.counts is None]  # which no node makes
    assert not [value.key for value in inputs if id(value) not in found]


def _read_afresh(graph, placements, whole):
    reader = Reader()
    reader.convert_sums(whole)
    return reader.read(graph, placements), whole


def _add_up(is_whole, _, rows):
    return tf.cumsum(rows, 1, exclusive=is_whole)


def test_an_op_that_a_rule_replaces_otherwise_is_read_anew(monkeypatch):
    """The ops that replace it have the names and the placements of the last reading, but another attribute."""

    def step(x):
        total = tf.reduce_sum(x)  # is whole in the second reading
        return tf.math.xdivy(total, x), tf.exp(total), 2.0 * total

    def replace(node):
        return Expansion(_add_up, (isinstance(node.get_placement(0), Replicated),))

    monkeypatch.setitem(RULES, "Xdivy", replace)
    program = read_program(_trace(step, [tf.ones([4, 3])]), [BATCH])
    assert [node.read_attribute("exclusive") for node in program.nodes if node.type == "Cumsum"] == [True]


@pytest.mark.parametrize("shape, size", [([], 1), ([3], 3), ([None, 3], 128 * 3), (None, 128)])
def test_the_bytes_of_a_tensor_are_estimated(shape, size):
    with tf.Graph().as_default():
        assert Value(tf.compat.v1.placeholder(tf.float32, shape), (), WHOLE).estimate_bytes(8) == 4 * size


def test_what_a_branch_gives_may_take_a_collective():
    def choose(x, flag):
        return tf.cond(flag, lambda: x * 2.0, lambda: tf.ones([4, 3]))

    specs = [tf.TensorSpec([None, 3]), tf.TensorSpec([], tf.bool)]
    graph = tf.function(choose, autograph=False).get_concrete_function(*specs).graph
    (found,) = [node.bodies for node in read_program(graph, [BATCH, WHOLE]).nodes if node.bodies]
    assert [body.has_collectives for body in found] == [True, False]


def _list_functions():
    return set(context.context().list_function_names())


def test_a_constant_of_which_a_rank_takes_rows_is_once_in_the_copy():
    table = np.random.default_rng(3).normal(size=(64, 32))
    simulation = Simulation(lambda x: tf.tanh(tf.constant(table) + x), [table], is_open=False)
    function = simulation.build(Meeting(2), 0, [])
    nodes = context.context().get_function_def(function.name).node_def
    assert [node.op for node in nodes if node.ByteSize() > table.nbytes] == ["Const"]


def test_functions_of_a_copy_are_removed_with_it():
    simulation = Simulation(lambda x: tf.exp(tf.reduce_sum(tf.square(x))), [tf.ones([4, 3])])
    gc.collect()
    before = _list_functions()
    function = simulation.build(Meeting(1), 0, [])
    assert _list_functions() - before
    del function
    gc.collect()
    assert _list_functions() == before


def test_effects_keep_their_order():
    """Writes before and after a collective, and a read between them."""
    variable = tf.Variable(1.0)

    def step(x):
        variable.assign(variable * 2.0 + 1.0)
        before = tf.identity(variable)
        variable.assign_add(tf.math.exp(tf.reduce_sum(x)) + before)
        after = tf.identity(variable)
        variable.assign(after * before - 1.0)
        return before, after

    simulation = Simulation(step, [tf.constant([[0.1], [0.2], [0.3]])])
    expected = simulation.run_alone(3)
    for given in simulation.run((2, 1), 3):
        assert not find_difference(expected, given, 1e-6)


def test_a_write_waits_for_a_read_before_it():
    variable = tf.Variable(1.0)

    def step(x):
        total = tf.math.exp(tf.reduce_sum(x * variable))
        variable.assign(2.0)
        return total

    function = Simulation(step, [tf.ones([4, 3])]).build(Meeting(1), 0, [])
    nodes = context.context().get_function_def(function.name).node_def
    before = {node.name: {one.lstrip("^").split(":")[0] for one in node.input} for node in nodes}
    assert not any("PartitionedCall" in node.op for node in nodes)
    (read,), (write,) = (
        [one.name for one in nodes if one.op == kind] for kind in ("ReadVariableOp", "AssignVariableOp")
    )
    reached = {write}
    while more := {name for one in reached for name in before.get(one, ())} - reached:
        reached |= more
    assert read in reached


def test_a_program_is_built_twice_in_one_graph():
    """With other rows each time; an op that is kept takes one tensor twice."""
    own = tf.function(lambda x: tf.square(x) * x + tf.tanh(x * x), autograph=False)
    own = own.get_concrete_function(tf.TensorSpec([None], tf.float32))
    program = read_program(own.graph, [BATCH])
    program.gives = [BATCH]

    def twice(x):
        batch_slice = Slice(*(tf.constant(one, tf.int64) for one in (0, 3, 3)), tf.constant(True), tf.constant(True))
        return [Copy(batch_slice, Exchanger(Meeting(1), 0)).build(program, [one])[0] for one in (x, x * 2.0)]

    x = tf.constant([0.5, 1.0, 2.0])
    found = trace_copy(twice, [tf.TensorSpec([3], tf.float32)])(x)
    assert not find_difference([own(x).numpy(), own(x * 2.0).numpy()], [one.numpy() for one in found], 1e-6)
