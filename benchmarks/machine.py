"""How steady is this machine? The speed of `memcpy` and of a matrix product, in parts of half a second.

    python benchmarks/machine.py [--seconds 60]

One process for each core, all at once. A step is made of such work, so its time can be no steadier: where the columns
differ by 20%, two runs of a benchmark differ, too. On a virtual machine, other machines of the host use its memory.
"""

from __future__ import annotations

import argparse
import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is imported

import multiprocessing
import time
from collections.abc import Callable

import numpy as np

BYTES, WIDTH, PART = 64 << 20, 768, 0.5  # of an array, beyond caches; of a matrix; seconds


def count_calls(call: Callable[[], object]) -> float:
    """Calls a second, during one part."""
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < PART:
        call()
        calls += 1
    return calls / (time.perf_counter() - start)


def measure(core: int, seconds: float) -> list[tuple[float, float]]:
    """GB/s that `memcpy` reads and writes, and GFLOP/s of a product, in each pair of parts."""
    os.sched_setaffinity(0, {core})
    source, target = np.ones(BYTES, np.uint8), np.empty(BYTES, np.uint8)
    matrix = np.ones((WIDTH, WIDTH), np.float32)
    parts = []
    for _ in range(max(1, round(seconds / (2 * PART)))):
        copies = count_calls(lambda: np.copyto(target, source))
        products = count_calls(lambda: matrix @ matrix)
        parts.append((copies * 2 * BYTES / 1e9, products * 2 * WIDTH**3 / 1e9))
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    seconds = parser.parse_args().seconds
    cores = sorted(os.sched_getaffinity(0))
    with multiprocessing.Pool(len(cores)) as pool:
        of_cores = pool.starmap(measure, [(core, seconds) for core in cores], chunksize=1)
    print(f"{'core':>4} {'':16} {'least':>7} {'10%':>7} {'median':>7} {'90%':>7} {'most':>7}")
    for core, parts in zip(cores, of_cores):
        for name, values in zip(("memcpy, GB/s", "product, GFLOP/s"), np.transpose(parts)):
            print(
                f"{core:>4} {name:16} "
                + " ".join(f"{value:7.1f}" for value in np.percentile(values, (0, 10, 50, 90, 100)))
            )


if __name__ == "__main__":
    main()
