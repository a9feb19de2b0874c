"""Runs all collectives on tensors of the device of `fake_gpu.cc`, and trains a model.

    device_case.py PLUGIN WAY

With WAY "staged" gradients are summed in host memory; with "direct" MPI receives addresses of the device.
"""

import os
import sys

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import load_library

import matex_tf
from matex_tf import ops
from matex_tf.ops import overlap

GPU, CPU = "/device:GPU:0", "/device:CPU:0"
plugin, way = sys.argv[1:]
rank, size = matex_tf.rank(), matex_tf.size()
load_library.load_pluggable_device_library(plugin)
tf.config.set_soft_device_placement(False)


def make_values(shape, dtype, of=rank):
    return np.reshape(np.arange(np.prod(shape, dtype=int)) % 13 + 3 * of, shape).astype(dtype.as_numpy_dtype)


def run_on_device(work, *values):
    """Call `work` in a function, with values on the device. Returns the device of each of the library's ops, by type,
    and the results of three calls.
    """

    @tf.function(autograph=False)
    def step():  # without arguments, because each rank would get its rows of them
        with tf.device(CPU):
            given = [tf.constant(value) for value in values]
        with tf.device(GPU):
            made = tf.nest.map_structure(tf.identity, work(*map(tf.identity, given)))
        with tf.device(CPU):
            return tf.nest.map_structure(tf.identity, made)

    context.context().enable_run_metadata()
    results = run_thrice(step)
    graphs = context.context().export_run_metadata().partition_graphs
    context.context().disable_run_metadata()
    ran = {node.op: node.device[-5:] for graph in graphs for node in graph.node if node.op.startswith("Matex")}
    return ran, results


def run_thrice(step, *arguments):
    """The results of three calls of `step`. After the first, a wait for the whole device ends this process."""
    results = [step(*arguments)]
    os.environ["FAKE_GPU_NO_DEVICE_WAIT"] = "1"
    results += [step(*arguments) for _ in range(2)]
    del os.environ["FAKE_GPU_NO_DEVICE_WAIT"]
    return results


def check_collectives():
    mine, theirs = make_values([5, 3], tf.float32), [make_values([5, 3], tf.float32, one) for one in range(size)]
    rows = mine[: rank + 1]
    for work, given, wanted in (
        (lambda x: ops.allreduce(x, "sum"), mine, sum(theirs)),
        (lambda x: ops.allreduce(x, "max"), mine, theirs[-1]),
        (lambda x: ops.broadcast(x, root=1), mine, theirs[1]),
        (ops.allgather, rows, np.concatenate([one[: at + 1] for at, one in enumerate(theirs)])),
    ):
        _, results = run_on_device(work, given)
        for result in results:
            np.testing.assert_array_equal(result.numpy(), wanted)
    assert run_on_device(lambda x: (ops.barrier(), x)[1], mine)[0]["MatexBarrier"] == "CPU:0"
    with tf.device(GPU):
        here = ops.allreduce(tf.identity(mine), "sum")
    assert here.device.endswith("GPU:0"), here.device
    np.testing.assert_array_equal(here.numpy(), sum(theirs))


def check_updates():
    """An update of small gradients, which are fused, and a large one, of several types; inline and overlapped."""
    shapes = [([], tf.float32), ([7], tf.float64), ([300, 300], tf.float32), ([4, 2], tf.float32), ([3], tf.float64)]
    mine = [make_values(*each) for each in shapes]
    wanted = [sum(make_values(*each, one) * (one + 1.0) for one in range(size)) for each in shapes]
    names = [f"variable {number}" for number in range(len(shapes))]

    def reduce(*gradients):
        return ops.reduce_gradients(gradients, names, tf.constant(rank + 1.0, tf.float64), "a test")

    ran = {}
    for overlapped in (False, True):
        with overlap.trace_as(overlapped):
            ran[overlapped], results = run_on_device(reduce, *mine)
        for result in results:
            for one, right in zip(result, wanted):
                np.testing.assert_array_equal(one.numpy(), right)
    at_once = {"MatexReduceOnDevice": "GPU:0"} if way == "direct" else {"MatexReduceGradients": "CPU:0"}
    assert ran[True]["MatexHandOverGradient"] == "GPU:0", ran
    assert at_once.items() <= ran[False].items(), ran


def check_step():
    """A sharded training step, with weights in host memory."""
    with tf.device(CPU):
        weights, rows = tf.Variable(tf.ones([3, 1])), tf.constant(make_values([7, 3], tf.float32, 0))

    @tf.function
    def step(x):
        with tf.device(CPU), tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weights) ** 2)
        gradient = tape.gradient(loss, weights)
        with tf.device(CPU):
            weights.assign_sub(1e-3 * gradient)
            return tf.identity(loss)

    right, value = [], np.ones([3, 1], np.float32)
    for _ in range(3):
        right.append(np.mean((rows.numpy() @ value) ** 2))
        value -= 1e-3 * 2 / 7 * rows.numpy().T @ (rows.numpy() @ value)
    np.testing.assert_allclose([one.numpy() for one in run_thrice(step, rows)], right, rtol=1e-5)
    np.testing.assert_allclose(weights.numpy(), value, rtol=1e-5)


if size > 1:
    check_collectives()
tf.config.set_soft_device_placement(True)  # gradients may be scaled by ops without a kernel for the device
if size > 1:
    check_updates()
    check_step()

import keras  # noqa: E402

keras.utils.set_random_seed(7)
keras.backend.set_floatx("float64")
rng = np.random.default_rng(5)
x = rng.normal(size=(50, 6))
with tf.device("CPU:0"):  # TensorFlow's kernels for CPUs would write to weights on the device themselves
    model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(200), keras.layers.Dense(1)])
    model.build([None, 6])
    model.compile("sgd", "mse", jit_compile=False)
losses = model.fit(x, x[:, :1] * x[:, 1:2], batch_size=16, epochs=2, verbose=0).history["loss"]
print("losses", *losses)
