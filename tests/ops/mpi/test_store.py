"""Variables in shared memory (docs/protocol.md): their addresses suit TensorFlow, and its ops do not write there."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from mpi4py import MPI

from matex_tf.apart import store, values

pytestmark = pytest.mark.mpi

RANK, SIZE = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
SHAPES = [(5,), (1,), (3, 7), (), (300,)]


@pytest.fixture
def shared():
    """Variables of various sizes in shared memory, and this memory as an array."""
    variables = [tf.Variable(np.full(shape, index + 1.0, np.float32)) for index, shape in enumerate(SHAPES)]
    placed = values.SharedValues(variables)
    if SIZE == 1 or not store.make_store(placed.size, 1, 1):
        pytest.skip("there is no memory in which ranks train together")
    MPI.COMM_WORLD.Barrier()
    placed.view_store(RANK == 0)
    MPI.COMM_WORLD.Barrier()
    yield variables, store.map_bytes(placed.size)
    MPI.COMM_WORLD.Barrier()
    store.drop_store()


def test_an_op_that_alone_has_a_value_does_not_write_its_result_there(shared):
    """TensorFlow may write the result of an op into an input with one reference; here these are the weights of all."""
    variables, memory = shared
    before = memory.copy()

    @tf.function
    def negated(variable):
        value = variable.read_value()
        variable.assign(tf.zeros_like(value))  # from now on, only `value` refers to the shared memory
        return -value

    if RANK == SIZE - 1:
        for index, variable in enumerate(variables):
            np.testing.assert_array_equal(negated(variable), np.full(SHAPES[index], -index - 1.0))
    MPI.COMM_WORLD.Barrier()
    np.testing.assert_array_equal(memory, before)


def test_each_variable_lies_where_tensorflow_takes_it(shared):
    """TensorFlow ends the process if the address of a tensor is not a multiple of 64 bytes."""
    variables, memory = shared
    of_floats = memory.view(np.float32)
    starts = [int(np.flatnonzero(of_floats == index + 1.0)[0]) * 4 for index in range(len(SHAPES))]
    assert [(memory.ctypes.data + start) % 64 for start in starts] == [0] * len(SHAPES)
    for index, variable in enumerate(variables):
        np.testing.assert_array_equal(tf.reduce_sum(variable), (index + 1.0) * np.prod(SHAPES[index]))
