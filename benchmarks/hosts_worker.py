"""One process of benchmarks/hosts.py. `sum COUNT` prints the milliseconds of raw MPI and of our op; `step MODEL BATCH`
those of a step and the number of parameters.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np
import tensorflow as tf
from models import CASES


def timed(work, count, barrier):
    took = []
    for _ in range(count):
        barrier()
        started = time.perf_counter()
        work()
        took.append(time.perf_counter() - started)
    return 1e3 * statistics.median(took)


def sums(count):
    from mpi4py import MPI

    from matex_tf import ops

    world = MPI.COMM_WORLD.Dup()
    flat, tensor = np.ones(count, np.float32), tf.ones([count])
    rounds = 7

    def ours():
        ops.reduce_gradients([tensor], ["x"], 1.0)

    ours()
    raw = timed(lambda: world.Allreduce(MPI.IN_PLACE, flat), rounds, world.Barrier)
    print(raw, timed(ours, rounds, world.Barrier))


def step(name, batch):
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.keras.utils.set_random_seed(1)
    case = CASES[name]
    model = case.build(tf.keras, case.shape)
    optimizer = tf.keras.optimizers.SGD(0.001, momentum=0.9)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    x = tf.random.stateless_normal([batch, *case.shape], seed=[1, 2])
    y = tf.random.stateless_uniform([batch], seed=[1, 2], maxval=10, dtype=tf.int32)

    @tf.function
    def train(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return tf.shape(x)[0]

    took = []
    for batch_x, batch_y in tf.data.Dataset.from_tensors((x, y)).repeat(3 + 4 * case.steps):
        started = time.perf_counter()
        assert int(train(batch_x, batch_y)) == batch
        took.append(time.perf_counter() - started)
    print(1e3 * statistics.median(took[3:]), model.count_params())


if __name__ == "__main__":
    if sys.argv[1] == "sum":
        sums(int(sys.argv[2]))
    else:
        step(sys.argv[2], int(sys.argv[3]))
