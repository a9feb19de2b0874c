"""Steps and memory of `MATEX_STRATEGY=sharded` against `allreduce`: mpirun -n 2 python benchmarks/strategies.py

A dense network of 10 million parameters, trained with Adam. The two take turns of 10 steps in one run; what is printed
is the median of each, the ratio of the medians, the bytes of the optimizer's variables on rank 0, and by how much the
memory of all ranks has grown, which those of a host share in part. TensorFlow's allocator for oneDNN keeps what it
once had; TF_ENABLE_ONEDNN_OPTS=0 shows what is in use.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from training import read_memory

os.environ.setdefault("MATEX_STRATEGY", "sharded")  # none is left to trials
import matex_tf
from matex_tf import settings
from matex_tf.runtime import objects
from matex_tf.servers.pieces import slots

STRATEGIES = ("allreduce", "sharded")
ROWS, WARM_UP, TURN = 64, 40, 10  # by then it is chosen whether updates overlap


def prepared(strategy: str, width: int) -> tuple[Any, Any, Any]:
    """A training step that is traced for `strategy`, its model's parameters, and its optimizer."""
    settings.get_settings().strategy = strategy  # as if the environment said so, of what is made from here on
    slots.start_pieces()
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(width, "relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((width,)), *layers, keras.layers.Dense(10)])
    optimizer = keras.optimizers.Adam(1e-4)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        of = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, of), of))
        return loss

    generator = np.random.default_rng(0)
    x = tf.constant(generator.normal(size=(ROWS, width)).astype("float32"))
    y = tf.constant(generator.normal(size=(ROWS, 10)).astype("float32"))
    for _ in range(WARM_UP):
        step(x, y)
    return lambda: step(x, y).numpy(), model.count_params(), optimizer


def held(optimizer: Any) -> int:
    """The bytes of an optimizer's variables that this rank has, without putting together what the ranks share."""
    inner = [variable.value for variable in optimizer.variables]
    return sum((one.piece if hasattr(one, "piece") else one).numpy().nbytes for one in inner)


def measure_memory() -> int:
    """The bytes of memory that all ranks have together, of a page that some share each its part. Collective."""
    ctypes.CDLL(None).malloc_trim(0)
    return sum(objects.allgather(read_memory("smaps_rollup", "Pss:"), "the memory of a rank"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=2230)
    parser.add_argument("--turns", type=int, default=6)
    arguments = parser.parse_args()
    made, grown = {}, {}
    for strategy in STRATEGIES:
        before = measure_memory()
        made[strategy] = prepared(strategy, arguments.width)
        grown[strategy] = measure_memory() - before
    seconds: dict[str, list[float]] = {strategy: [] for strategy in STRATEGIES}
    for _ in range(arguments.turns):
        for strategy, (step, _, _) in made.items():
            settings.get_settings().strategy = strategy
            for _ in range(TURN):
                start = time.perf_counter()
                step()
                seconds[strategy].append(time.perf_counter() - start)
    if matex_tf.rank() == 0:
        medians = {strategy: statistics.median(taken) for strategy, taken in seconds.items()}
        print(f"{matex_tf.size()} ranks, {made['allreduce'][1] / 1e6:.1f} M parameters, Adam")
        for strategy, (_, _, optimizer) in made.items():
            ratio = medians[strategy] / medians["allreduce"]
            print(
                f"{strategy:10} step {1000 * medians[strategy]:7.1f} ms, ratio {ratio:.2f}, "
                f"optimizer {held(optimizer) / 1e6:6.1f} MB, all ranks {grown[strategy] / 1e6:7.1f} MB"
            )


if __name__ == "__main__":
    main()
