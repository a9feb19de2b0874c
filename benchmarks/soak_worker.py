"""The script that benchmarks/soak.py runs: `python soak_worker.py WHAT COUNT`, and prints what the process holds.

A line for each look: what has been done, resident memory in KiB, file descriptors, threads and functions traced by the
script, the largest of all ranks.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import matex_tf

keras = tf.keras
LOOKS = 50
traces = 0


def look(done: int) -> None:
    """Say what this process holds now."""
    gc.collect()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    held = [resident, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), traces]
    print(done, *matex_tf.allreduce(tf.constant(held, tf.int64), "max").numpy(), flush=True)


def model() -> Any:
    made = keras.Sequential(
        [keras.Input((16,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)]
    )
    made.compile(keras.optimizers.Adam(1e-3), "mse", metrics=["mae"])
    return made


def data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(rows, 16)).astype("float32")
    return x, x.sum(1, keepdims=True)


def steps(count: int) -> None:
    """One fit of `count` steps."""
    each = max(count // LOOKS, 1)

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            look((epoch + 1) * each)

    x, y = data(8 * each)
    model().fit(x, y, batch_size=8, epochs=count // each, verbose=0, shuffle=False, callbacks=[Look()])


def fits(count: int) -> None:
    """`count` fits of one model."""
    made, (x, y) = model(), data(80)
    repeat(count, lambda number: made.fit(x, y, batch_size=8, verbose=0))


def models(count: int) -> None:
    """`count` models, each trained and dropped."""
    x, y = data(80)

    def one(number: int) -> None:
        model().fit(x, y, batch_size=8, verbose=0)
        keras.backend.clear_session()

    repeat(count, one)


def retraces(count: int) -> None:
    """A `tf.function` that is traced anew for each of `count` numbers of columns, and let go."""
    optimizer = keras.optimizers.SGD(1e-3)
    made = model()
    x, y = data(count + 8)
    batches = tf.data.Dataset.from_tensor_slices((x, y))

    def one(number: int) -> None:
        @tf.function
        def step(a, b):
            global traces
            traces += 1
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((made(a) - b) ** 2)
            found = tape.gradient(loss, made.trainable_variables)
            optimizer.apply_gradients(zip(found, made.trainable_variables))
            return loss

        for a, b in batches.take(3 * (8 + number % 4)).batch(8 + number % 4):
            step(a, b)

    repeat(count, one)


def sums(count: int) -> None:
    """Public collectives in eager code, `count` times each."""

    def one(number: int) -> None:
        x = tf.fill([number % 7 + 1, 3], 1.0)
        matex_tf.allreduce(x)
        matex_tf.broadcast(x)
        matex_tf.allgather(x)

    repeat(count, one)


def repeat(count: int, action: Callable[[int], Any]) -> None:
    each = max(count // LOOKS, 1)
    for number in range(count):
        action(number)
        if (number + 1) % each == 0:
            look(number + 1)


if __name__ == "__main__":
    {"steps": steps, "fits": fits, "models": models, "retraces": retraces, "sums": sums}[sys.argv[1]](int(sys.argv[2]))
