"""What it costs to record for a table or a timeline: `mpirun --bind-to none -n 2 python benchmarks/recording.py`.

The engine's own time for an update of gradients in memory, without TensorFlow, while nothing, totals, or events, too,
are recorded: in alternating rounds of one run, medians of the rounds. And what a sample of the monitor takes of a core.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import matex_tf
from matex_tf import ops
from matex_tf.monitor import sampler
from matex_tf.monitor.log import Log
from matex_tf.observe import timeline

HOW = {"nothing": 0, "totals": ops.records.TOTALS, "events": ops.records.EVENTS}
SAMPLES = 1000
# (what it is like, elements of each gradient, updates in a round)
CASES = (
    ("4 KiB, one gradient", [1024], 50),
    ("0.4 MB, 84 gradients", [1200] * 84, 20),
    ("5 MB, 10 gradients", [1 << 20, 1 << 17, *[1 << 12] * 8], 3),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    c = ops.get_library().c
    print("microseconds an update" + " " * 10 + "".join(f"{name:>12}" for name in HOW) + "   over nothing")
    for title, sizes, updates in CASES:
        count = len(sizes)
        arrays = [np.ones(size, np.float32) for size in sizes]
        places = (ctypes.c_void_p * count)(*(array.ctypes.data for array in arrays))
        names = (ctypes.c_char_p * count)(*(f"layer_{index}/kernel".encode() for index in range(count)))
        types, lengths = (ctypes.c_int * count)(*[0] * count), (ctypes.c_int * count)(*[1] * count)
        shapes = (ctypes.c_int64 * count)(*sizes)
        variables = (ctypes.c_int64 * count)(*range(1, count + 1))
        took: dict[str, list[float]] = {name: [] for name in HOW}
        for turn in range(rounds):
            for name in list(HOW)[:: 1 if turn % 2 else -1]:
                ops.records.set_recording(HOW[name], timeline.CAPACITY)
                MPI.COMM_WORLD.Barrier()
                started = time.perf_counter()
                for _ in range(updates):
                    failed = c.matex_reduce(
                        count, names, types, lengths, shapes, variables, places, places, 0.5, 0, b"a benchmark"
                    )
                    assert not failed, c.matex_last_error()
                took[name].append((time.perf_counter() - started) / updates * 1e6)
        ops.records.set_recording(0)
        medians = [statistics.median(found) for found in took.values()]
        ratios = [statistics.median(a / b for a, b in zip(took[name], took["nothing"])) for name in list(HOW)[1:]]
        print(f"{title:32}" + "".join(f"{one:12.2f}" for one in medians) + "".join(f"{one:8.3f}" for one in ratios))
    print(f"a sample of the monitor: {sample() * 1e6:.0f} us of a core\n{matex_tf.size()} ranks")


def sample() -> float:
    """Seconds of a core for a sample and its line."""
    with tempfile.TemporaryDirectory() as folder:
        log = Log(Path(folder, "rank-0.jsonl"), print)
        recorder = sampler.Recorder(folder, log, 1.0)
        started = time.thread_time()
        for _ in range(SAMPLES):
            log.write_line(**recorder.take_sample())
        return (time.thread_time() - started) / SAMPLES


if __name__ == "__main__":
    main()
