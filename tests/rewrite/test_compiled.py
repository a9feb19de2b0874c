"""Functions that XLA compiles stay compiled in the copy of a step, and give what they give alone."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import compiled_steps
import keras
import numpy as np
import pytest
import tensorflow as tf
from comparing import differences, stored
from simulated_ranks import Simulation, find_difference

import launch
from matex_tf.ops import build
from matex_tf.rewrite import compiled
from matex_tf.rewrite.placement import Sharded

CASES = Path(compiled_steps.__file__)
N = compiled_steps.N


pytestmark = pytest.mark.usefixtures("float64")


class _Alone:
    """One rank of one: there is nobody to exchange with."""

    rank, sums_early = 0, False

    def exchange(self, requests, batch_slice, *_):
        return [tf.identity(one.tensor) for one in requests]


def _copy(step):
    return compiled_steps.copy_step(compiled_steps.trace(step), _Alone())


@pytest.mark.parametrize("name", compiled_steps.MAKERS)
def test_one_rank_compiles_what_the_script_does(name):
    _, step = compiled_steps.MAKERS[name]()
    arguments = tf.constant(compiled_steps.X), tf.constant(compiled_steps.Y)
    _, own = compiled_steps.MAKERS[name]()
    expected = [one.numpy() for one in tf.nest.flatten(compiled_steps.trace(own)(*arguments))]
    copied, _ = _copy(step)
    assert compiled_steps.has_compiled_calls(copied.graph)
    given = copied(tf.constant([0, N, N], tf.int64), tf.constant(True), *arguments)
    assert not find_difference(expected, [one.numpy() for one in given])


def test_random_numbers_of_a_compiled_function_are_the_slice_of_the_scripts():
    """XLA makes the same numbers of a moved counter, too."""

    @tf.function(jit_compile=True)
    def draw(x):
        shape = tf.shape(x)
        return [
            draw(shape, [1, 2], dtype=dtype)
            for draw in (tf.random.stateless_normal, tf.random.stateless_uniform)
            for dtype in (tf.float32, tf.float64)
        ]

    x, y = compiled_steps.X, tf.constant(compiled_steps.Y)
    program = _copy(lambda x, y: draw(x))[1]
    assert all(isinstance(one.placement, Sharded) for one in program.outputs)
    for start, end in ((0, 3), (3, 8), (8, N)):
        rows = tf.constant([start, end - start, N], tf.int64)
        inner = _copy(lambda x, y: [one * 1.0 for one in draw(x)])[0]
        for whole, mine in zip(draw(x), inner(rows, tf.constant(True), x[start:end], y[start:end])):
            np.testing.assert_array_equal(whole[start:end], mine)


@pytest.fixture
def _not_compiled(monkeypatch):
    """Simulated ranks exchange in Python, which XLA cannot: the functions are called as others are."""
    monkeypatch.setattr(compiled, "compile_function", lambda function: tf.function(function, autograph=False))


def _make_keras():
    L = keras.layers
    model = keras.Sequential([L.Input([4, 4, 2]), L.Conv2D(3, 2), L.BatchNormalization(), L.ReLU(), L.Flatten(),
                              L.Dense(2)])  # fmt: skip
    model.compile(keras.optimizers.Adam(0.01, global_clipnorm=0.5), "mse", metrics=["mae"], jit_compile=True)
    images = np.random.default_rng(2).normal(size=[N, 4, 4, 2])
    model._symbolic_build(data_batch=(tf.constant(images), tf.constant(compiled_steps.Y)))
    train = tf.function(lambda x, y: model.train_step((x, y)), jit_compile=True)
    return (lambda x, y: train(x, y)), [images, compiled_steps.Y]


def _make_forward():
    return compiled_steps.make_forward()[1], [compiled_steps.X, compiled_steps.Y]


@pytest.mark.usefixtures("_not_compiled")
@pytest.mark.parametrize("make", [_make_keras, _make_forward], ids=["keras", "forward"])
def test_ranks_compute_what_the_step_computes_alone(make):
    step, arguments = make()
    simulation = Simulation(step, arguments)
    assert any(node.bodies for node in simulation.program.nodes)
    expected = simulation.run_alone(2)
    for counts in ((6, 5), (5, 0, 6)):
        for rank, given in enumerate(simulation.run(counts, 2)):
            assert not find_difference(expected, given, 1e-9), f"rank {rank}, {counts} rows"


def test_what_cannot_travel_there_is_gathered_before_the_call():
    for name, is_shared in (("step", True), ("masked", False)):
        _, program = _copy(compiled_steps.MAKERS[name]()[1])
        (call,) = [node for node in program.nodes if compiled.is_compiled(node.op)]
        assert bool(call.bodies) == is_shared


@pytest.mark.timeout(900)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.more)])
def test_ranks_exchange_in_compiled_functions(ranks, tmp_path):
    build.build_xla()
    alone = tmp_path / "alone"
    alone.mkdir()
    launch.run_alone(CASES, alone, timeout=300).check()
    launch.run(ranks, CASES, tmp_path, env=launch.ALL_FILES, timeout=500).check()
    assert not differences(stored(alone)[0], stored(tmp_path, ranks))
