"""Steps and bytes of `MATEX_STRATEGY=local:H` between hosts: sudo python benchmarks/local.py [--rate 1gbit] [--hosts 2]

A dense network of 3.2 million parameters is trained by `fit` with SGD, in one run by each strategy in turns. The hosts
are made of network namespaces of this machine. What is printed are medians of the rounds: the time of a step, what the
first host sent in it, and the loss after as many rows.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

STRATEGIES = ("allreduce", "local:1", "local:8")
WIDTH, ROWS, STEPS, EPOCHS = 1024, 16, 16, 2  # of which the last is timed


def sent() -> int:
    """The bytes that this host has sent."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if "eth0" in line)
    return int(line.partition(":")[2].split()[8])


def work(rounds: int) -> None:
    """What each rank does; the first prints the figures."""
    import keras
    import numpy as np

    import matex_tf
    from matex_tf import settings

    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS * STEPS, WIDTH)).astype("float32")
    y = np.tanh(x[:, :1])
    found: dict[str, list[tuple[float, float, float]]] = {strategy: [] for strategy in STRATEGIES}

    class Times(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.start, self.sent = time.perf_counter(), sent()

        def on_epoch_end(self, epoch, logs=None):
            self.seconds, self.bytes = time.perf_counter() - self.start, sent() - self.sent

    for _ in range(rounds):
        for strategy in STRATEGIES:
            settings.get_settings().strategy = strategy  # as if the environment said so
            keras.utils.set_random_seed(1)
            layers = [keras.layers.Dense(WIDTH, "relu") for _ in range(3)]
            model = keras.Sequential([keras.Input((WIDTH,)), *layers, keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.01), "mse")
            times = Times()
            model.fit(x, y, ROWS, epochs=EPOCHS, verbose=0, callbacks=[times])
            loss = model.evaluate(x, y, verbose=0)
            found[strategy].append((times.seconds / STEPS, times.bytes / STEPS / 1e6, loss))
    if matex_tf.rank() == 0:
        for strategy, rows in found.items():
            seconds, megabytes, loss = (median(column) for column in zip(*rows))
            print(f"{strategy:10} step {1000 * seconds:7.1f} ms, sent {megabytes:6.2f} MB, loss {loss:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", action="store_true")
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.rounds)
        return
    from network import Hosts

    with (
        tempfile.TemporaryDirectory() as folder,
        Hosts(arguments.hosts, arguments.rate, folder, True) as hosts,
    ):
        words = ["-m", "matex_tf", __file__, "--worker", "--rounds", str(arguments.rounds)]
        print(f"{arguments.hosts} hosts, {arguments.rate}")
        print(hosts.mpirun(words, {"MATEX_STRATEGY": "local:8"}), end="")


if __name__ == "__main__":
    main()
