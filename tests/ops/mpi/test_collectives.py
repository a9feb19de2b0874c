"""The collectives as TensorFlow ops: every dtype and shape, eager and in functions, with their gradients."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from matex_tf import ops
from matex_tf.world import world

pytestmark = pytest.mark.mpi

RANK, SIZE = world.get_world().rank, world.get_world().size
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")
SHAPES = ((), (1,), (0,), (3, 4), (2, 0), (300_000,))
REDUCE = {"sum": np.sum, "min": np.min, "max": np.max, "mean": np.mean}


def value(rank: int, shape: tuple, dtype: str) -> np.ndarray:
    """Small whole numbers, different on each rank: sums of them are exact in every dtype."""
    return (np.arange(int(np.prod(shape))).reshape(shape) * (rank + 2) % 11).astype(tf.as_dtype(dtype).as_numpy_dtype)


def everyone(shape: tuple, dtype: str) -> np.ndarray:
    return np.stack([value(rank, shape, dtype).astype(np.float64) for rank in range(SIZE)])


def both_ways(function, values):
    """For each tensor, two results of a function: of an eager call, and of one `tf.function` for all tensors."""
    tensors = [tf.constant(one) for one in values]
    together = tf.function(lambda: [function(one) for one in tensors])()
    return [(function(one), other) for one, other in zip(tensors, together)]


@pytest.mark.parametrize("op", REDUCE)
def test_allreduce(op):
    cases = list(itertools.product(SHAPES, DTYPES))
    mine = [value(RANK, *case) for case in cases]
    for (shape, dtype), results in zip(cases, both_ways(lambda x: ops.allreduce(x, op), mine)):
        wanted = REDUCE[op](everyone(shape, dtype), axis=0)
        if op == "mean" and "int" in dtype:
            wanted = np.trunc(wanted)
        for result in results:
            assert result.dtype.name == dtype and result.shape == shape
            np.testing.assert_allclose(
                result.numpy().astype(np.float64), wanted, rtol={"float16": 1e-3, "bfloat16": 1e-2}.get(dtype, 1e-6)
            )


def test_allreduce_of_bool():
    mine = tf.constant([True, RANK == 0, False])
    np.testing.assert_array_equal(ops.allreduce(mine, "min"), [True, SIZE == 1, False])
    np.testing.assert_array_equal(ops.allreduce(mine, "max"), [True, True, False])


def test_mean_of_small_integers_does_not_overflow():
    assert ops.allreduce(tf.constant(200, tf.uint8)).numpy() == 200
    assert ops.allreduce(tf.constant(2**31 - 1)).numpy() == 2**31 - 1
    assert ops.allreduce(tf.constant(-3 if RANK == 0 else -2)).numpy() == int((-3 - 2 * (SIZE - 1)) / SIZE)


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_nan_of_one_rank_reaches_all(op, dtype):
    for odd in range(SIZE):
        mine = tf.constant([np.nan if odd == RANK else 1.0, RANK], dtype)
        result = ops.allreduce(mine, op).numpy().astype(float)
        assert np.isnan(result[0]) and not np.isnan(result[1])


def test_allreduce_of_a_list():
    results = ops.allreduce([tf.constant(1.0), tf.constant([RANK, 2])], "sum")
    assert isinstance(results, list)
    assert results[0].numpy() == SIZE
    np.testing.assert_array_equal(results[1], [SIZE * (SIZE - 1) // 2, 2 * SIZE])


def test_variables_and_numbers():
    assert ops.allreduce(tf.Variable(2.0), "sum").numpy() == 2 * SIZE
    assert ops.allreduce(2.5).numpy() == 2.5
    np.testing.assert_array_equal(ops.broadcast(np.arange(3) + RANK, SIZE - 1), np.arange(3) + SIZE - 1)


@pytest.mark.parametrize("root", range(SIZE))
def test_broadcast(root):
    cases = list(itertools.product(SHAPES, (*DTYPES, "bool")))
    mine = [value(RANK, *case) for case in cases]
    for case, results in zip(cases, both_ways(lambda x: ops.broadcast(x, root), mine)):
        for result in results:
            np.testing.assert_array_equal(result.numpy(), value(root, *case))


@pytest.mark.parametrize("rows", [lambda rank: 2, lambda rank: rank, lambda rank: 3 * (rank == 0), lambda rank: 0])
def test_allgather(rows):
    cases = list(itertools.product(((), (3,), (2, 0)), (*DTYPES, "bool")))
    mine = [value(RANK, (rows(RANK), *rest), dtype) for rest, dtype in cases]
    for (rest, dtype), results in zip(cases, both_ways(ops.allgather, mine)):
        wanted = np.concatenate([value(rank, (rows(rank), *rest), dtype) for rank in range(SIZE)])
        for result in results:
            assert result.dtype.name == dtype
            np.testing.assert_array_equal(result.numpy(), wanted)


def test_allgather_of_scalars():
    np.testing.assert_array_equal(ops.allgather(RANK), np.arange(SIZE))


def test_static_shapes():
    """The shapes of results while a function is traced."""

    @tf.function(input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([])])
    def shapes(x, scalar):
        assert ops.allreduce(x).shape.as_list() == [None, 3]
        assert ops.broadcast(x).shape.as_list() == [None, 3]
        assert ops.allgather(x).shape.as_list() == [None, 3]
        assert ops.allgather(scalar).shape.rank == 1
        reduced = ops.reduce_gradients([x, scalar], ["x", "scalar"], 1.0)
        assert [one.shape.as_list() for one in reduced] == [[None, 3], []]

    shapes.get_concrete_function()


def test_barrier():
    ops.barrier()

    @tf.function
    def function():
        ops.barrier()
        return tf.constant(1)

    kind = ops.Kind.BARRIER
    before, took = ops.count_completed(kind), ops.get_collective_seconds(kind)
    assert function().numpy() == 1
    count = ops.count_completed(kind)
    assert count == before + (SIZE > 1), "a barrier in a function runs although nothing depends on it"
    assert took < ops.get_collective_seconds(kind) if SIZE > 1 else ops.get_collective_seconds(kind) == 0


def test_functions_keep_the_order_of_ops():
    """Independent collectives in one function run in the order they were written, as all ranks wrote them."""

    @tf.function
    def function(x):
        return [
            ops.allreduce(x, "sum"),
            ops.allgather(x),
            ops.broadcast(x * 2),
            ops.allreduce(x * 3, "max"),
            *ops.reduce_gradients([x], ["x"], 1.0),
        ]

    for _ in range(30):
        results = function(tf.fill([2], 1.0 + RANK))
    total = SIZE * (SIZE + 1) / 2
    np.testing.assert_array_equal([result[0] for result in results], [total, 1, 2, 3 * SIZE, total])


def test_collectives_in_branches_and_loops():
    @tf.function
    def function(flag, x):
        x = ops.allreduce(x, "sum") if flag else ops.broadcast(x, SIZE - 1)
        for _ in tf.range(3):
            x = ops.allreduce(x, "max") + 1.0
        return x

    start = tf.constant(float(RANK))
    assert function(tf.constant(True), start).numpy() == SIZE * (SIZE - 1) / 2 + 3
    assert function(tf.constant(False), start).numpy() == SIZE - 1 + 3


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients(compiled):
    """The differentiated scalar is the sum of the ranks' scalars: here of c * f(x), where c = rank + 1."""

    def gradient(function):
        def compute(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(function(x)) * (RANK + 1.0)
            return tape.gradient(y, x)

        return tf.function(compute) if compiled else compute

    total = SIZE * (SIZE + 1) / 2
    x = tf.constant([1.0, 2.0])
    np.testing.assert_allclose(gradient(lambda x: ops.allreduce(x, "sum"))(x), [total] * 2)
    np.testing.assert_allclose(gradient(lambda x: ops.allreduce(x, "mean"))(x), [total / SIZE] * 2, rtol=1e-6)
    np.testing.assert_allclose(gradient(lambda x: ops.broadcast(x, SIZE - 1))(x), [total * (RANK == SIZE - 1)] * 2)
    rows = tf.ones([RANK + 1, 2]) * (RANK + 1.0)
    np.testing.assert_allclose(gradient(lambda x: ops.allgather(x) ** 2)(rows), rows * 2 * total)
    for op, winner in (("max", SIZE - 1), ("min", 0)):
        mine = tf.constant([float(RANK), 5.0])
        np.testing.assert_allclose(
            gradient(lambda x, op=op: ops.allreduce(x, op))(mine), [total * (winner == RANK), total / SIZE], rtol=1e-6
        )
    weighted = gradient(lambda x: ops.reduce_gradients([x, x * 2], ["a", "b"], RANK / 2)[1])(x)
    np.testing.assert_allclose(weighted, [total * RANK] * 2)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="op has to be one of mean, sum, min, max; given 'product'"):
        ops.allreduce(1.0, "product")
    with pytest.raises(TypeError, match="expected a tensor of float32.*not of string"):
        ops.allreduce("text")
    with pytest.raises(TypeError, match="mean of bool"):
        ops.allreduce(True)
    with pytest.raises(ValueError, match=f"from 0 to {SIZE - 1}; given {SIZE}"):
        ops.broadcast(1.0, SIZE)
    with pytest.raises(TypeError, match="not a RaggedTensor"):
        ops.allgather(tf.ragged.constant([[1], [2, 3]]))
    with pytest.raises(ValueError, match="expected 1 names.*not 2"):
        ops.reduce_gradients([tf.ones(1)], ["a", "b"], 1.0)
    with pytest.raises(TypeError, match="'a' is int32"):
        ops.reduce_gradients([tf.constant(1)], ["a"], 1.0)
