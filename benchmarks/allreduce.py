"""What a reduction of gradients costs beside raw MPI: `mpirun --bind-to none -n 2 python benchmarks/allreduce.py`.

For each size, in alternating rounds of one run, the medians of: one MPI_Allreduce of a flat buffer; the same in pieces
of 1 MiB; the pieces and one copy in and out (what any library must do); a `tf.function` that computes values of that
size, as gradients are, and writes them to variables, with an identity between; that function and then the pieces and
copies, timed as one, in which a rank that is through with its function waits for the other, as it does in our op; the
function with our op in the identity's place. The last two columns are what the op adds to the graph: less that of both
together, and over what the pieces and copies add.

The second table is of the op alone, in milliseconds: `memcpy` of as many bytes by every process at once, which is the
roofline, since a sum of G bytes reads G bytes of its gradients and writes G of their sums; what a core computes for the
op (its own time, by the clock of the process, without waiting and without the identity's function); what it computes
while it waits; how long it waits for the other rank. Then the own time and what the op adds, over the roofline. On a
busy machine the own time is what to look at.

The third table is counted, not measured: how often a rank of one host moves the bytes of its gradients through memory
in a step, of which `memcpy` moves them twice. It leaves out the backward pass, and what ranks read of one another's
blocks, which stay in caches. "least" is `sharded` without its two last copies: the owner would update its piece from
the blocks, and all ranks would have one copy of the weights.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from typing import NamedTuple

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


def count_moves(ranks, slots):
    """Bytes that a rank moves through memory for each byte of gradients, by the way of the step and what moves them.

    slots: variables of the optimizer for each weight: 1 with momentum, 2 with Adam.
    """
    piece, others = 1 / ranks, (ranks - 1) / ranks
    engine, update = "gradients and sums", "update"
    return {
        "alone": {update: 1 + 2 + 2 * slots},  # the gradients; weights and slots, read and written
        "allreduce": {engine: 1 + 1, update: 1 + 2 + 2 * slots},
        "sharded": {engine: 1 + piece, update: (1 + 2 + 2 * slots) * piece, "weights of others": 2 * others},
        "least": {engine: 1, update: (2 + 2 * slots) * piece},
    }


def print_moves(ranks, milliseconds_of_copy):
    """milliseconds_of_copy: of a `memcpy` of the last of CASES by each rank at once."""
    print(f"\n{'times the gradients':22}" + "".join(f"{way:>12}" for way in count_moves(ranks, 1)))
    for title, slots in (("SGD with momentum", 1), ("Adam", 2)):
        counted = count_moves(ranks, slots)
        for part in counted["sharded"]:
            print(f"  {part:20}" + "".join(f"{moves.get(part, 0):12.2f}" for moves in counted.values()))
        sums = [sum(moves.values()) for moves in counted.values()]
        print(f"{title:22}" + "".join(f"{one:12.2f}" for one in sums))
        print(f"  {'ms at memcpy':20}" + "".join(f"{one / 2 * milliseconds_of_copy:12.1f}" for one in sums))


class Took(NamedTuple):
    """Seconds of one round: of the clock and of cores, and how much of each went into waiting for other ranks."""

    wall: float
    cpu: float
    waited: float
    waited_cpu: float

    @property
    def own(self):
        return self.cpu - self.waited_cpu


def read_clocks():
    waited, of_a_core = ctypes.c_double(), ctypes.c_double()
    ops.get_library().c.matex_waited(ctypes.byref(waited), ctypes.byref(of_a_core))
    return time.perf_counter(), time.process_time(), waited.value, of_a_core.value


def seconds(work, rounds):
    took = []
    for _ in range(rounds):
        MPI.COMM_WORLD.Barrier()
        started = read_clocks()
        work()
        took.append(Took(*(now - then for now, then in zip(read_clocks(), started))))
    return took


def milliseconds(found, field):
    return statistics.median(getattr(one, field) for one in found) * 1e3


def works(sizes, world):
    """What is timed for gradients of `sizes`: functions without arguments, which a `tf.function` would look at."""
    flat = np.ones(sum(sizes), np.float32)
    source, target = flat.copy(), flat.copy()
    gradients = [tf.Variable(tf.ones([size])) for size in sizes]
    results = [tf.Variable(tf.ones([size])) for size in sizes]
    weight = tf.constant(1.0 / world.size, tf.float64)
    factor = tf.Variable(1.0)
    names = [str(index) for index in range(len(sizes))]

    def whole():
        world.Allreduce(MPI.IN_PLACE, flat)

    def pieces():
        for start in range(0, len(flat), CHUNK):
            world.Allreduce(MPI.IN_PLACE, flat[start : start + CHUNK])

    def copies():
        flat[:] = source
        pieces()
        target[:] = flat

    def between(middle):
        for result, one in zip(results, middle([one * factor for one in gradients])):
            result.assign(one)

    @tf.function
    def nothing():
        between(tf.identity_n)  # as our op, it begins when all values are there

    @tf.function
    def reduce():
        between(lambda values: ops.reduce_gradients(values, names, weight, "benchmark"))

    def together():
        nothing()
        copies()

    def copy():
        np.copyto(target, source)

    def afresh():
        flat[:] = 1.0

    return (whole, pieces, copies, nothing, together, reduce, copy), afresh


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="on a busy machine a few are enough for the own time")
    parser.add_argument(
        "--calls", type=int, default=20, help="of each function in a round, for all but the largest sums"
    )
    chosen = parser.parse_args()
    world = MPI.COMM_WORLD.Dup()
    columns = ("one call", "pieces", "+ copies", "identity", "and + copies", "our op")
    if world.rank == 0:
        print(
            f"{'float32 values':24}"
            + "".join(f"{name:>13}" for name in columns)
            + f"{'op adds':>12}{'of + copies':>12}"
        )
    alone = []
    for name, sizes in CASES:
        todo, afresh = works(sizes, world)
        took = {work: [] for work in todo}
        for work in took:
            seconds(work, chosen.calls)
        # Turns are short, so that whatever else the machine does meets all alike.
        for _ in range(chosen.rounds):
            for work, found in took.items():
                found += seconds(work, min(2, chosen.calls) if sum(sizes) > 1 << 24 else chosen.calls)
                afresh()
        *_, identity, _, op, copy = took.values()
        *medians, roofline = (milliseconds(found, "wall") for found in took.values())
        *_, graph, both, ours = medians
        own = milliseconds(op, "own") - milliseconds(identity, "own")
        waits = milliseconds(op, "waited_cpu"), milliseconds(op, "waited")
        copied = milliseconds(copy, "cpu")
        alone.append(
            f"{name:24}{roofline:10.3f}{copied:11.3f}{own:11.3f}" + "".join(f"{wait:11.3f}" for wait in waits)
            + f"{own / copied:12.2f}{(ours - graph) / roofline:12.2f}"
        )  # fmt: skip
        added = f"{(ours - both) * 1e3:+9.0f} us{(ours - graph) / (both - graph):12.2f}"
        if world.rank == 0:
            print(f"{name:24}" + "".join(f"{value:10.3f} ms" for value in medians) + added, flush=True)
    if world.rank == 0:
        titles = ("memcpy", "of a core", "own", "waits", "for", "own/memcpy", "adds/memcpy")
        print(f"\n{'ms':22}" + "".join(f"{title:>12}" for title in titles), *alone, sep="\n")
        print(f"{matex_tf.size()} ranks; medians")
        print_moves(world.size, roofline)


if __name__ == "__main__":
    main()
