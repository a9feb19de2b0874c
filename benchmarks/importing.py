"""What `import matex_tf` adds to `import tensorflow`: `python benchmarks/importing.py [--rounds 7]`.

Seconds and resident memory of a fresh process that imports the one, the other, and Keras and mpi4py beside TensorFlow
(what any script of several ranks needs); medians of alternating rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

CASES = {
    "import tensorflow": "import tensorflow",
    "and mpi4py.MPI, keras": "import tensorflow; tensorflow.keras.Model; from mpi4py import MPI",
    "import matex_tf": "import matex_tf",
    "import tensorflow, matex_tf": "import tensorflow; tensorflow.keras.Model; import matex_tf",
}
MEMORY = "\nimport resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"


def measured(program: str) -> tuple[float, float]:
    """Seconds and MiB of a process that runs `program`."""
    started = time.perf_counter()
    child = subprocess.run(
        [sys.executable, "-c", program + MEMORY],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return time.perf_counter() - started, float(child.stdout.split()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    found = {name: [] for name in CASES}
    for number in range(rounds + 1):
        for name, program in CASES.items():
            one = measured(program)
            if number:  # the first fills the file cache
                found[name].append(one)
    medians = {name: [statistics.median(values) for values in zip(*pairs)] for name, pairs in found.items()}
    first = next(iter(medians.values()))
    for name, (seconds, memory) in medians.items():
        print(f"{name:30}{seconds:7.2f} s {seconds - first[0]:+6.2f} s{memory:8.0f} MiB {memory - first[1]:+6.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
