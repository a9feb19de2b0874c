"""One process of benchmarks/hosts.py. `sum COUNT` prints the milliseconds of raw MPI and of our op; `step MODEL BATCH
IGNORED` those of a step, but for the first so many, and of it those of the processor; and the number of parameters.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np
import tensorflow as tf
from models import CASES, EXCHANGED, ON_DEVICE
from training import check_rows, prepared


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


def step(name, batch, ignored):
    if "matex_tf" in sys.modules:
        from matex_tf.rewrite.nodes import Decision
        from matex_tf.rewrite.placement import SUM
        from matex_tf.rewrite.rules import RULES

        RULES["PyFunc"] = RULES["Relu"]  # the device sleeps for its rows, and returns them
        RULES["PyFuncStateless"] = lambda node: Decision([None], [SUM])  # a gradient over them
    case = {**CASES, **ON_DEVICE, **EXCHANGED}[name]
    model, data, train = prepared(case, batch)
    took, busy = [], []
    batches = tf.data.Dataset.from_tensor_slices(data).repeat().batch(batch)
    for number, (batch_x, batch_y) in zip(range(ignored + 2 * case.steps), batches):
        started, worked = time.perf_counter(), time.process_time()
        check_rows(number, int(train(batch_x, batch_y)), batch)
        took.append(time.perf_counter() - started)
        busy.append(time.process_time() - worked)
    print(*(1e3 * statistics.median(times[ignored:]) for times in (took, busy)), model.count_params())


if __name__ == "__main__":
    if sys.argv[1] == "sum":
        sums(int(sys.argv[2]))
    else:
        step(sys.argv[2], *map(int, sys.argv[3:]))
