"""What a reduction of gradients costs beside raw MPI: `mpirun --bind-to none -n 2 python benchmarks/allreduce.py`.

For each size, in alternating rounds of one run, the medians of: one MPI_Allreduce of a flat buffer; the same in pieces
of 1 MiB; the pieces and one copy in and out (what any library must do); our op on gradients of that size in all.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import tensorflow as tf
from mpi4py import MPI

import matex_tf
from matex_tf import ops

CHUNK = 1 << 18  # of float32: 1 MiB
# (what it is like, elements of each gradient)
CASES = (
    ("4 KiB, one gradient", [1024]),
    ("1.2 M, 10 gradients", [1 << 20, 1 << 17, *[1 << 12] * 8]),
    ("2.7 M, 84 gradients", [32768] * 82 + [4096] * 2),
    ("25 M, 161 gradients", [1 << 20] * 20 + [32768] * 141),
    ("60 M, 16 gradients", [1 << 24, 1 << 24, 1 << 24, *[1 << 20] * 10, *[4096] * 3]),
)


def seconds(work, rounds):
    took = []
    for _ in range(rounds):
        MPI.COMM_WORLD.Barrier()
        started = time.perf_counter()
        work()
        took.append(time.perf_counter() - started)
    return took


def main():
    world = MPI.COMM_WORLD.Dup()
    print(f"{'float32 values':24}{'one call':>12}{'pieces':>12}{'+ copies':>12}{'our op':>12}{'op/(+ copies)':>16}")
    for name, sizes in CASES:
        flat = np.ones(sum(sizes), np.float32)
        source, target = flat.copy(), flat.copy()
        gradients = [tf.Variable(tf.ones([size])) for size in sizes]
        results = [tf.Variable(tf.ones([size])) for size in sizes]
        weight = tf.constant(1.0 / world.size, tf.float64)

        def whole(flat=flat):
            world.Allreduce(MPI.IN_PLACE, flat)

        def pieces(flat=flat):
            for start in range(0, len(flat), CHUNK):
                world.Allreduce(MPI.IN_PLACE, flat[start : start + CHUNK])

        def copies(flat=flat, source=source, target=target):
            flat[:] = source
            pieces(flat)
            target[:] = flat

        @tf.function
        def reduce(gradients=gradients, results=results, weight=weight):
            names = [str(index) for index in range(len(gradients))]
            reduced = ops.reduce_gradients([one.read_value() for one in gradients], names, weight, "benchmark")
            for result, one in zip(results, reduced):
                result.assign(one)

        rounds = 5 if sum(sizes) > 1 << 24 else 30
        took = {work: [] for work in (whole, pieces, copies, reduce)}
        for work in took:
            seconds(work, 2)
        for _ in range(3):
            for work, found in took.items():
                found += seconds(work, rounds)
                flat[:] = 1.0
        medians = [statistics.median(found) * 1e3 for found in took.values()]
        print(f"{name:24}" + "".join(f"{value:9.3f} ms" for value in medians) + f"{medians[3] / medians[2]:16.2f}")
    print(f"{matex_tf.size()} ranks; medians; the op reads and writes variables")


if __name__ == "__main__":
    main()
