"""Small batches by `MATEX_STRATEGY=async`: python benchmarks/asynchronous.py

A convolutional network for sentences (embedding of 300, 400 filters of width 3, 311 labels; 2.1 million parameters), of
the size of GaDei's Joule, is trained by `fit` with batches of 2 and of 16 rows. One process, as many independent copies
as ranks, allreduce and async take turns, each process or rank with one core and one thread. What is printed is the
median over rounds of the rows a second, and the accuracy on rows not trained, after the same epochs, of each way. Each
round draws its weights and batches anew.

    python benchmarks/asynchronous.py --batches 2 --epochs 30 --rounds 5 --ways alone async --ranks 2 4   # accuracy
    python benchmarks/asynchronous.py --batches 2 --ways copies allreduce async --slow 10    # the last rank is slowed
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROWS, TESTED, WORDS, LABELS, LENGTH = 2_799, 600, 5_327, 311, 24
WAYS = ("alone", "copies", "allreduce", "async")


def sentences() -> tuple[Any, Any]:
    """Rows of words by number, and their labels. Of each label some words come more often; the others follow Zipf."""
    import numpy as np

    generator = np.random.default_rng(11)
    count = ROWS + TESTED
    labels = np.arange(count) % LABELS
    own = generator.integers(1, WORDS, size=(LABELS, 6))
    words = np.minimum(generator.zipf(1.3, size=(count, LENGTH)), WORDS - 1)
    telling = generator.random((count, LENGTH)) < 0.5
    words[telling] = own[labels[:, None], generator.integers(0, 6, size=(count, LENGTH))][telling]
    order = generator.permutation(count)
    return words[order].astype("int32"), labels[order].astype("int32")


def train(batch: int, epochs: int, rate: float, seed: int, slow: float) -> None:
    """Train, and print as JSON the seconds of each epoch and the accuracy. Each batch takes `slow` times as long."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    import keras

    keras.utils.set_random_seed(seed)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            layers.Embedding(WORDS, 300),
            layers.Conv1D(400, 3, activation="tanh"),
            layers.GlobalMaxPooling1D(),
            layers.Dense(LABELS),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate), loss, metrics=["accuracy"])
    words, labels = sentences()
    times: list[float] = []

    class Clock(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.start = time.perf_counter()

        def on_train_batch_begin(self, batch, logs=None):
            self.begun = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            if slow > 1:
                time.sleep((slow - 1) * (time.perf_counter() - self.begun))

        def on_epoch_end(self, epoch, logs=None):
            times.append(time.perf_counter() - self.start)

    model.fit(words[:ROWS], labels[:ROWS], batch, epochs, verbose=0, callbacks=[Clock()])
    _, accuracy = model.evaluate(words[ROWS:], labels[ROWS:], 100, verbose=0)
    print("RESULT " + json.dumps({"seconds": times, "accuracy": accuracy}), flush=True)


def measured(way: str, ranks: int, words: list[str], slow: float) -> tuple[float, float]:
    """Rows a second of all processes together, of which the last is slowed, and the accuracy of the first."""
    script = [str(Path(__file__).resolve()), "--train", *words]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "MATEX_QUIET": "1"}
    if way in ("alone", "copies"):
        environment["MATEX_DISABLE"] = "1"
        cores = sorted(os.sched_getaffinity(0))
        count = 1 if way == "alone" else ranks
        slowed = [["1"]] * (count - 1) + [[str(slow)]]
        commands = [
            ["taskset", "-c", str(cores[one % len(cores)]), sys.executable, *script, *slowed[one]]
            for one in range(count)
        ]
    else:
        run = [str(Path(sys.executable).with_name("matex")), "run", "-n", str(ranks), "--strategy", way]
        commands = [[*run, *script, str(slow)]]
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    speed, accuracies = 0.0, []
    for process in processes:
        printed, complaints = process.communicate()
        lines = [line for line in printed.splitlines() if line.startswith("RESULT ")]
        if process.returncode or not lines:
            sys.exit(f"{way} failed:\n{printed}{complaints}")
        result = json.loads(lines[0].removeprefix("RESULT "))
        speed += ROWS / statistics.median(result["seconds"][1:])
        accuracies.append(result["accuracy"])
    return speed, accuracies[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", nargs=5, metavar=("BATCH", "EPOCHS", "RATE", "SEED", "SLOW"), help=argparse.SUPPRESS)
    parser.add_argument("--batches", type=int, nargs="+", default=[2, 16])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--ways", nargs="+", default=WAYS)
    parser.add_argument(
        "--slow", type=float, default=1.0, help="times as long as others the last rank takes for a batch"
    )
    arguments = parser.parse_args()
    if arguments.train:
        batch, epochs, rate, seed, slow = arguments.train
        import matex_tf

        rank, ranks = matex_tf.rank(), matex_tf.size()
        train(int(batch), int(epochs), float(rate), int(seed), float(slow) if rank == ranks - 1 else 1.0)
        return
    runs = [
        (way, ranks)
        for ranks in arguments.ranks
        for way in arguments.ways
        if way != "alone" or ranks == arguments.ranks[0]
    ]
    for batch in arguments.batches:
        found: dict[tuple[str, int], list[tuple[float, float]]] = {run: [] for run in runs}
        for seed in range(arguments.rounds):
            for way, ranks in runs:
                words = [str(batch), str(arguments.epochs), str(arguments.rate), str(seed)]
                speed, accuracy = measured(way, ranks, words, arguments.slow)
                found[way, ranks].append((speed, accuracy))
                print(
                    f"  {way}, {ranks} ranks: {speed:.0f} rows/s, accuracy {accuracy:.3f}", file=sys.stderr, flush=True
                )
        speeds = {run: statistics.median(speed for speed, _ in results) for run, results in found.items()}
        print(f"batches of {batch} rows, {arguments.epochs} epochs, {arguments.rounds} rounds")
        for run, results in found.items():
            least, most = min(results)[0], max(results)[0]
            ratios = ", ".join(f"{speeds[run] / speeds[other]:.2f} of {named(other)}" for other in runs if other != run)
            accuracy = statistics.mean(accuracy for _, accuracy in results)
            figures = f"{speeds[run]:6.0f} rows/s ({least:.0f} to {most:.0f}), accuracy {accuracy:.3f}"
            print(f"{named(run):12} {figures}; {ratios}")


def named(run: tuple[str, int]) -> str:
    way, ranks = run
    return way if way == "alone" else f"{way} ({ranks})"


if __name__ == "__main__":
    main()
