"""The collectives in functions that XLA compiles: their results, their order, and ops without an XLA kernel."""

import re

import numpy as np
import pytest
import tensorflow as tf

from matex_tf import ops
from matex_tf.ops import build
from matex_tf.world import world

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(500)]


@pytest.fixture(scope="module", autouse=True)
def kernels():
    if world.is_active():
        build.build_xla()


def per_rank(dtype):
    """[[1, 2, 3], [4, 5, 6]] times the rank, from 1."""
    return tf.cast(tf.reshape(tf.range(1, 7), [2, 3]) * (world.get_world().rank + 1), dtype)


OTHERS = (tf.float64, tf.float16, tf.int64, tf.uint8)


@pytest.mark.parametrize(
    "dtypes",
    [(tf.float32, tf.bfloat16, tf.int32), pytest.param(OTHERS, marks=pytest.mark.more)],
    ids=["usual", "others"],
)
def test_every_type(dtypes):
    def collectives(tensors):
        found = []
        for x in tensors:
            found += [ops.allreduce(x, op) for op in ("sum", "mean", "min", "max")]
            ops.barrier()
            found += [ops.broadcast(x[0], world.get_world().size - 1), ops.allreduce(x[:0]), ops.allreduce(x[1, 2])]
        return found

    tensors = [per_rank(dtype) for dtype in dtypes]
    for got, want in zip(tf.function(collectives, jit_compile=True)(tensors), collectives(tensors)):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(tf.cast(got, tf.float64), tf.cast(want, tf.float64))


def test_gradients_of_one_update():
    big = per_rank(tf.float32) * tf.ones([20000, 2, 3])  # reduced in place; the others are fused
    tensors = [per_rank(tf.float64), big, per_rank(tf.float32), per_rank(tf.float16)]
    names = ["a", "b", "c", "d"]

    def reduce(weight):
        return ops.reduce_gradients(tensors, names, weight, "a test")

    rank, size = world.get_world().rank, world.get_world().size
    for weight in (tf.constant(1.0 / size, tf.float64), tf.constant([float(rank == 0), 8.0], tf.float64)):
        for got, want in zip(tf.function(reduce, jit_compile=True)(weight), reduce(weight)):
            np.testing.assert_array_equal(got, want)


def test_a_compiled_derivative():
    @tf.function(jit_compile=True)
    def derivative(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(ops.allreduce(x, "sum") ** 2)
        return tape.gradient(y, x)

    size = world.get_world().size
    np.testing.assert_allclose(derivative(tf.ones([3])), np.full(3, 2.0 * size * size))


def chain(hlo):
    """For each custom call of the library in a program: the length of the chain of such calls that ends in it.

    A call depends on the previous one by its last operand, the token.
    """
    defined = {}
    for line in hlo.splitlines():
        found = re.match(r"\s*(?:ROOT )?%?([\w.-]+) = .*? (custom-call|get-tuple-element|copy|bitcast)\((.*)$", line)
        if not found:
            continue
        name, kind, rest = found.groups()
        operands = re.findall(r"%?([\w.-]+)(?=[,)])", rest.split("), ")[0] + ")")
        defined[name] = (kind, operands, "matex_collective" in rest)

    def length(name):
        kind, operands, ours = defined.get(name, ("", [], False))
        return length(operands[-1] if ours else operands[0]) + ours if kind else 0

    return [length(name) for name, (_, _, ours) in defined.items() if ours]


def test_independent_collectives_are_chained():
    @tf.function(jit_compile=True)
    def inner(x):
        return ops.allreduce(x[:1], "sum")

    @tf.function(jit_compile=True)
    def step(x):
        # No two of them share anything, and each has another shape.
        parts = [tf.reduce_sum(ops.allreduce(x[: width + 2] * width, "sum")) for width in range(1, 6)]
        parts.append(tf.reduce_sum(inner(x)))
        largest = tf.reduce_sum(ops.allreduce(x[:8], "max")) if tf.reduce_sum(x) > 0 else tf.constant(0.0)
        for _ in tf.range(3):
            x += tf.reduce_mean(ops.allreduce(x, "sum"))
        return tf.add_n(parts) + largest + tf.reduce_sum(x)

    x = tf.ones([10])
    size = world.get_world().size
    want = sum((width + 2) * width for width in range(1, 6)) * size + size + 8 + 10 * (1 + size) ** 3
    for _ in range(3):
        assert float(step(x)) == want
    if world.is_active():

        @tf.function(jit_compile=True)
        def flat(x):
            return [ops.allreduce(x[:width], "sum") for width in range(1, 6)]

        assert sorted(chain(flat.experimental_get_compiler_ir(x)(stage="optimized_hlo"))) == [1, 2, 3, 4, 5]


def test_what_xla_has_no_kernel_for_runs_without_it():
    @tf.function(jit_compile=True)
    def gather(x):
        return ops.allgather(x)

    @tf.function(jit_compile=True)
    def outer(x):
        return tf.reduce_sum(gather(x)) + ops.allreduce(tf.constant(1.0), "sum")

    rank, size = world.get_world().rank, world.get_world().size
    for _ in range(2):
        assert float(outer(tf.ones([rank + 1]))) == size * (size + 1) / 2 + size
