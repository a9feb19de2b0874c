"""The op that reduces all gradients of an update, wherever TensorFlow runs it."""

from __future__ import annotations

import functools
import hashlib
import itertools

import numpy as np
import pytest
import tensorflow as tf

from matex_tf import ops
from matex_tf.ops import overlap
from matex_tf.rewrite.subgraphs import reach
from matex_tf.world import world

pytestmark = pytest.mark.mpi

RANK, SIZE = world.get_world().rank, world.get_world().size
NAMES = ["conv", "bias", "half", "brain", "empty", "double"]
DTYPES = ["float32", "float32", "float16", "bfloat16", "float32", "float64"]
SHAPES = [(600, 700), (5,), (), (33, 3), (0, 4), (1000,)]


def gradients(rank: int) -> list[tf.Tensor]:
    random = np.random.default_rng(rank)
    return [tf.cast(tf.constant(random.standard_normal(shape)), dtype) for shape, dtype in zip(SHAPES, DTYPES)]


def weight(rank: int) -> float:
    return (rank + 1) / (SIZE * (SIZE + 1) / 2)


@functools.cache
def compute_sums() -> list[np.ndarray]:
    everyone = [[weight(rank) * one.numpy().astype(np.float64) for one in gradients(rank)] for rank in range(SIZE)]
    return [sum(parts) for parts in zip(*everyone)]


def check(results: list) -> None:
    for result, one, dtype in zip(results, compute_sums(), DTYPES):
        result = np.asarray(result)
        assert result.shape == one.shape and tf.as_dtype(result.dtype).name == dtype
        tolerance = {"float16": 3e-3, "bfloat16": 3e-2, "float32": 1e-5}.get(dtype, 1e-14)
        np.testing.assert_allclose(result.astype(np.float64), one, rtol=tolerance, atol=tolerance)
    digest = hashlib.sha256(b"".join(np.asarray(result).tobytes() for result in results)).digest()
    same = ops.allgather(tf.constant(np.frombuffer(digest, np.uint8)[None]))
    assert len(np.unique(same, axis=0)) == 1, "bit for bit the same on all ranks"


def reduce(tensors, weight, place="a test"):
    return ops.reduce_gradients(tensors, NAMES, weight, place)


def test_eager():
    before = ops.count_updates()
    check(reduce(gradients(RANK), weight(RANK)))
    assert ops.count_updates() == before + (SIZE > 1)


def test_inputs_are_left_alone():
    """The op may work in its input's memory only where nobody else reads it."""
    mine = gradients(RANK)
    reduce(mine, weight(RANK))
    for left, one in zip(mine, gradients(RANK)):
        np.testing.assert_array_equal(left.numpy().astype(float), one.numpy().astype(float))


def test_function():
    function = tf.function(lambda tensors, weight: reduce(tensors, weight))
    before = ops.count_updates()
    for _ in range(3):
        check(function(gradients(RANK), tf.constant(weight(RANK), tf.float64)))
    assert ops.count_updates() == before + 3 * (SIZE > 1)


def test_ranks_that_trace_at_different_times():
    """A layout is agreed by content: one rank's new trace is no news to the others (rule 6)."""

    @tf.function
    def step(rows):
        mine = tf.reduce_sum(rows, axis=0)
        return ops.reduce_gradients([mine], ["x"], 1.0, "a step")[0]

    for turn in range(6):
        rows = 1 + (turn * (RANK + 1)) % 3
        np.testing.assert_allclose(
            step(tf.ones([rows, 4])), np.full(4, sum(1 + (turn * (rank + 1)) % 3 for rank in range(SIZE)))
        )


def test_shapes_known_only_when_run():
    function = tf.function(lambda x: ops.reduce_gradients([x], ["x"], 1.0)[0], input_signature=[tf.TensorSpec(None)])
    for shape in ((3,), (2, 2), (), (3,)):
        np.testing.assert_array_equal(function(tf.ones(shape)), np.full(shape, SIZE))


def test_weight_of_zero_selects_zeros():
    mine = tf.fill([100], np.nan if RANK else 2.0)
    for function in (ops.reduce_gradients, tf.function(ops.reduce_gradients)):
        (result,) = function([mine], ["x"], tf.constant(float(RANK == 0), tf.float64))
        np.testing.assert_array_equal(result, np.full(100, 2.0))


def test_weight_of_zero_selects_zeros_in_v1_graphs():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        mine = tf.fill([100], np.nan if RANK else 2.0)
        (result,) = ops.reduce_gradients([mine], ["x"], tf.constant(float(RANK == 0), tf.float64))
        np.testing.assert_array_equal(session.run(result), np.full(100, 2.0))


def test_an_update_keeps_its_place_among_other_collectives():
    """Nothing but their order says which comes first."""

    @tf.function
    def step(x):
        before = [ops.allreduce(x + number, "sum") for number in range(3)]
        (between,) = ops.reduce_gradients([x], ["x"], 1.0, "a step")
        after = [ops.allreduce(x - number, "sum") for number in range(3)]
        return before, between, after

    if world.is_active():
        found = step.get_concrete_function(tf.ones([3])).graph.get_operations()
        ours = [op for op in found if op.type in ("MatexAllreduce", "MatexReduceGradients", "MatexReduceOnDevice")]
        for earlier, later in itertools.pairwise(ours):
            assert earlier in reach([later], lambda op: [*(one.op for one in op.inputs), *op.control_inputs])
    for _ in range(50):
        before, between, after = step(tf.fill([3], 5.0))
        np.testing.assert_array_equal(between, np.full(3, 5.0 * SIZE))
        for number in range(3):
            np.testing.assert_array_equal(before[number], np.full(3, (5.0 + number) * SIZE))
            np.testing.assert_array_equal(after[number], np.full(3, (5.0 - number) * SIZE))


@pytest.mark.parametrize("overlapped", [False, True])
def test_gradients_of_reduced_gradients(overlapped):
    """The gradients of the outer update depend on the sums of the inner update, so the inner one comes first. The sums
    for the gradient of the inner update are no update themselves, and are not overlapped.
    """
    weights = tf.Variable([1.0, 2.0])
    other = tf.Variable([3.0, 1.0])

    @tf.function
    def step():
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = tf.reduce_sum(weights**3) + tf.reduce_sum(other**2)
            (slope,) = ops.reduce_gradients([inner.gradient(loss, weights)], ["inner"], 1.0, "the inner")
            punished = loss + tf.reduce_sum(slope**2)
        found = outer.gradient(punished, [other, weights])
        return ops.reduce_gradients(found, ["other", "weights"], 1.0, "the outer")

    with overlap.trace_as(overlapped):
        graph = step.get_concrete_function().graph
    announced = [op for op in graph.get_operations() if op.type == "MatexAnnounceUpdate"]
    assert len(announced) == (2 if overlapped and world.is_active() and world.has_threads() else 0)
    before = ops.count_updates()
    value = np.array([1.0, 2.0])
    # Each rank's punishment is the same function of all ranks' weights.
    wanted = 3 * value**2 * SIZE + 2 * (3 * value**2 * SIZE) * 6 * value * SIZE * SIZE
    for _ in range(10):
        of_other, of_weights = step()
        np.testing.assert_allclose(of_other, np.array([6.0, 2.0]) * SIZE)
        np.testing.assert_allclose(of_weights, wanted, rtol=1e-5)
    assert ops.count_updates() == before + 10 * 2 * (SIZE > 1)


def test_the_gradient_of_a_sum_that_is_no_update_is_none(monkeypatch):
    """Not even where every update is overlapped."""
    monkeypatch.setattr(overlap, "is_chosen", lambda *_: world.is_active() and not tf.executing_eagerly())

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            (total,) = ops.reduce_gradients([x], ["x"], ops.make_weight(1), "a sum", is_update=False)
            square = tf.reduce_sum(total**2)
        return tape.gradient(square, x)

    before = ops.count_updates()
    np.testing.assert_allclose(step(tf.constant([1.0, 2.0])), np.array([2.0, 4.0]) * SIZE**2)
    assert ops.count_updates() == before


def test_branches():
    @tf.function
    def step(flag, x):
        return tf.cond(flag, lambda: ops.reduce_gradients([x], ["x"], 1.0)[0], lambda: x)

    before = ops.count_updates()
    assert step(tf.constant(True), tf.constant(1.0)).numpy() == SIZE
    assert step(tf.constant(False), tf.constant(1.0)).numpy() == 1
    assert ops.count_updates() == before + (SIZE > 1)


def test_no_gradients():
    assert ops.reduce_gradients([], [], 1.0) == []


def test_v1_graph():
    values = [one.numpy() for one in gradients(RANK)]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        inputs = [tf.compat.v1.placeholder(dtype) for dtype in DTYPES]
        outputs = reduce(inputs, tf.constant(weight(RANK), tf.float64))
        results = [session.run(outputs, dict(zip(inputs, values))) for _ in range(3)]
    for result in results:
        check(result)


def test_v1_graph_keeps_the_announced_order():
    """Independent ops of a graph become ready in another order on each rank; their turns give one order."""
    with tf.Graph().as_default() as graph:
        config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=4)
        session = tf.compat.v1.Session(config=config)
        random = np.random.default_rng(RANK)
        outputs = []
        for i in range(12):
            work = tf.ones([int(random.integers(10, 300))] * 2) * tf.random.uniform([])
            ready = tf.reduce_sum(tf.matmul(work, work)) * 0.0
            outputs.append(ops.reduce_gradients([ready + float(i)], [f"x{i}"], 1.0, f"update {i}")[0])
        turns = [op.get_attr("turn") for op in graph.get_operations() if op.type in ops.OP_TYPES]
        assert turns == sorted(set(turns))
        for _ in range(20):
            ops.announce_turns(turns)
            np.testing.assert_allclose(session.run(outputs), [SIZE * i for i in range(12)])
        session.close()


def test_v1_run_that_fails_leaves_nothing_waiting():
    """If a run fails, an op that still waits for its turn is cancelled, on every rank."""
    if SIZE == 1:
        return
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [])
        with tf.control_dependencies([tf.debugging.assert_greater(x, 0.0)]):
            first = ops.reduce_gradients([x], ["first"], 1.0)[0]
        second = ops.reduce_gradients([tf.constant(1.0)], ["second"], 1.0)[0]
        turns = [op.get_attr("turn") for op in graph.get_operations() if op.type in ops.OP_TYPES]
        for _ in range(5):
            ops.announce_turns(turns)
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run([first, second], {x: -1.0})
            ops.announce_turns(turns)
            assert session.run([first, second], {x: 1.0}) == [SIZE, SIZE]
        ops.announce_turns([])
