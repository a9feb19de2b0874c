"""Gradients are summed in the order in which they are ready, while the step computes others."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import tensorflow as tf
from simulated_ranks import Exchanger, Meeting, Simulation
from tensorflow.python.eager import context

import launch
from matex_tf.rewrite import early
from matex_tf.rewrite.placement import BATCH, WHOLE
from matex_tf.rewrite.propagate import read_program

LAYERS = 4
OVERLAPPED = {"MATEX_OVERLAP": "on", "MATEX_STRATEGY": "allreduce"}


@pytest.fixture
def step():
    """A step that updates its weights by SGD, the weight of the first layer first."""
    weights = [tf.Variable(tf.eye(3)) for _ in range(LAYERS)]

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.tanh(y @ weight)
            loss = tf.reduce_sum(y)
        for weight, gradient in zip(weights, tape.gradient(loss, weights)):
            weight.assign_sub(0.1 * gradient)
        return loss

    return step


@pytest.fixture
def program(step):
    graph = step.get_concrete_function(tf.TensorSpec([None, 3])).graph
    return read_program(graph, [BATCH] + [WHOLE] * LAYERS)


def find_sums(program):
    return [value for node in program.nodes for value in node.outputs if value.placement.is_row_sum]


def list_before(node, waits={}):  # noqa: B006 (nothing changes it)
    found, pending = {}, [node]
    while pending:
        one = pending.pop()
        before = [*(value.node for value in one.inputs if value.node is not None), *one.controls]
        before += waits.get(id(one), [])
        pending += [each for each in before if id(each) not in found]
        found.update((id(each), each) for each in before)
    return found


def test_what_needs_no_more_rows_comes_before_later_ops_with_rows(program):
    nodes = early.put_early(program.nodes)
    assert sorted(map(id, nodes)) == sorted(map(id, program.nodes))
    places = {id(node): place for place, node in enumerate(nodes)}
    with_rows = [node for node in program.nodes if node.has_rows]
    assert [node for node in nodes if node.has_rows] == with_rows
    for node in nodes:
        needed = list_before(node)
        assert all(places[number] < places[id(node)] for number in needed)
        if not node.has_rows:  # no op with rows between it and the last one that it needs
            last = max((places[number] for number, one in needed.items() if one.has_rows), default=-1)
            assert not any(last < places[id(one)] < places[id(node)] for one in with_rows)


@pytest.mark.parametrize("threads", [1, 2])
def test_with_one_thread_ops_with_rows_wait_for_the_sums_before_them(program, threads, monkeypatch):
    monkeypatch.setattr(early, "count_threads", lambda: threads)
    nodes = early.put_early(program.nodes)
    sums = {id(value) for value in find_sums(program)}
    waits = early.list_waits(nodes, sums)
    assert bool(waits) == (threads == 1)
    for place, node in enumerate(nodes):
        before = list_before(node, waits)
        assert id(node) not in before
        if node.has_rows and threads == 1:
            made = [one for one in nodes[:place] if any(id(value) in sums for value in one.outputs)]
            assert all(id(one) in before for one in made)


def test_no_wait_lies_between_ops_that_tensorflow_merges(monkeypatch):
    """Else the op that oneDNN's pass makes of the gradients of a kernel and of a bias would wait for itself."""
    monkeypatch.setattr(early, "count_threads", lambda: 1)
    kernels = [tf.Variable(tf.ones([3, 3, 2, 2])) for _ in range(LAYERS)]
    biases = [tf.Variable(tf.zeros([2])) for _ in range(LAYERS)]

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            for kernel, bias in zip(kernels, biases):
                x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))
            loss = tf.reduce_sum(x)
        variables = kernels + biases
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(0.1 * gradient)

    graph = step.get_concrete_function(tf.TensorSpec([None, 4, 4, 2])).graph
    program = read_program(graph, [BATCH] + [WHOLE] * 2 * LAYERS)
    nodes = early.put_early(program.nodes)
    sums = {id(value) for value in find_sums(program)}
    waits = early.list_waits(nodes, sums)
    takers = {}
    for node in nodes:
        if node.type in ("BiasAddGrad", "Conv2DBackpropFilter"):
            takers.setdefault(id(node.inputs[2 if node.type == "Conv2DBackpropFilter" else 0]), []).append(node)
    assert [len(pair) for pair in takers.values()] == [2] * LAYERS
    pairs = list(takers.values())
    for (first, second), later in itertools.zip_longest(pairs, pairs[1:]):
        assert id(first) not in list_before(second, waits)
        # Both sums of a layer are made before those of the layer below.
        for one in later or ():
            assert {id(first), id(second)} <= list_before(one, waits).keys()


@pytest.mark.parametrize("threads", [1, 2])
def test_the_copy_makes_its_sums_one_after_the_other_with_one_thread(step, threads, monkeypatch):
    """As TensorFlow's runtime has the copy, with the ops that are kept: each sum is made before the next one."""
    monkeypatch.setattr(early, "count_threads", lambda: threads)
    monkeypatch.setattr(Exchanger, "sums_early", True)
    simulation = Simulation(step, [np.ones([4, 3], np.float32)])
    copy = simulation.build(Meeting(2), 0, simulation.variables)
    nodes = {node.name: node for node in context.context().get_function_def(copy.name).node_def}

    def list_before(name):
        found, pending = set(), [name]
        while pending:
            inputs = [one.lstrip("^").split(":")[0] for one in nodes[pending.pop()].input]
            pending += [one for one in inputs if one in nodes and one not in found]
            found.update(inputs)
        return found

    (exchange,) = [node for node in nodes.values() if node.op == "PyFunc"]
    makers = [one.split(":")[0] for one in exchange.input if one.split(":")[0] in nodes]
    makers = [name for name in makers if nodes[name].op == "Mul"]  # of a gradient and a rate
    assert len(makers) == LAYERS
    for before, after in itertools.pairwise(makers):
        assert (before in list_before(after)) == (threads == 1)
        assert after not in list_before(before)


CONVOLUTIONS = """
import numpy as np
import matex_tf
import keras

keras.utils.set_random_seed(1)
layers = [keras.Input((8, 8, 2)), *(keras.layers.Conv2D(3, 3, activation="relu") for _ in range(3))]
model = keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = np.random.RandomState(1).randn(40, 8, 8, 2).astype("float32")
print("result", *model.fit(x, x[:, 0, 0, :1], batch_size=16, epochs=2, verbose=0, shuffle=False).history["loss"])
"""


def test_convolutions_with_biases_train_in_one_thread():
    """In single precision, in which oneDNN merges the gradients of a kernel and of a bias."""
    settings = {"TF_NUM_INTEROP_THREADS": "1"}
    alone = launch.run_alone(CONVOLUTIONS, env=settings).check()
    together = launch.run(2, CONVOLUTIONS, env={**OVERLAPPED, **settings}).check()
    np.testing.assert_allclose(read_result(together), read_result(alone), rtol=1e-5)


def read_result(ended):
    (line,) = re.findall(r"^result (.*)$", ended.output, re.MULTILINE)
    return np.array(line.split(), float)


SCRIPT = """
import sys
import matex_tf
from matex_tf.ops import overlap
from matex_tf.rewrite import waves

waves._MIN_EARLY_BYTES = int(sys.argv[1])
reduce = overlap.reduce_gradients

def told(tensors, names, *rest):
    print("part", *(name for name in names if "kernel" in name), flush=True)
    return reduce(tensors, names, *rest)

overlap.reduce_gradients = told
import keras
import numpy as np

keras.utils.set_random_seed(1)
keras.config.set_floatx("float64")
layers = [keras.Input((5,))]
for number in range(2):
    layers += [keras.layers.Dense(6, "tanh", name=f"d{number}"), keras.layers.BatchNormalization()]
model = keras.Sequential([*layers, keras.layers.Dense(1, name="d2")])
model.compile("adam", "mse")
x = np.random.RandomState(1).randn(40, 5)
history = model.fit(x, x[:, :1], batch_size=16, epochs=2, verbose=0, shuffle=False)
print("result", *history.history["loss"], *(float(np.abs(one).sum()) for one in model.get_weights()))
"""


@pytest.fixture(scope="module")
def alone():
    return launch.run_alone(SCRIPT, 1).check()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "least, parts, settings",
    [
        pytest.param(1, 3, {}, marks=pytest.mark.more),
        (1 << 30, 1, {}),
        (1, 3, {"MATEX_STRATEGY": "sharded"}),
        (1, 3, {"MATEX_CHECK_NUMERICS": "1"}),
        (1, 3, {"TF_NUM_INTEROP_THREADS": "4"}),
    ],
)
def test_an_update_has_parts_between_the_collectives_of_a_backward_pass(alone, least, parts, settings):
    """With BatchNormalization over all ranks' rows, each layer has a collective in the backward pass."""
    together = launch.run(2, SCRIPT, least, env={**OVERLAPPED, **settings}).check()
    np.testing.assert_allclose(read_result(together), read_result(alone), rtol=1e-9)
    told = re.findall(r"^part ?(.*)$", together.output, re.MULTILINE)
    names = [re.findall(r"d\d", line) for line in told]
    traces = len(names) // parts
    assert names[:parts] * traces == names
    assert [name for part in names[:parts] for name in part] == ["d2", "d1", "d0"]
