"""Steps in eager code: the time of one whose model's call ranks share beside one that every rank computes whole.

    mpirun -n 2 python benchmarks/eager.py [--rounds 10]

Both train the same network on the same batches, in turns, so that a busy machine disturbs them alike. What is called by
`model.call` is ops in eager code, which every rank computes whole. Beside them stands three times the forward pass of a
slice, about the least that a step can take.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import matex_tf

WARM_UP = 3


def network(kind: str) -> keras.Model:
    if kind == "dense":
        return keras.Sequential([keras.Input((256,)), *(layers.Dense(512, activation="relu") for _ in range(3))])
    wide = [layers.Conv2D(64, 3, padding="same", activation="relu") for _ in range(4)]
    return keras.Sequential([keras.Input((32, 32, 3)), *wide, layers.GlobalAveragePooling2D(), layers.Dense(10)])


def step(model: keras.Model, call, optimizer, x: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(call(x)))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    if matex_tf.rank() == 0:
        heads = f"{'whole':>9} {'shared':>9} {'ratio':>6}"
        print(f"{'network':8} {'rows':>5} {heads}   3 x forward pass of a slice")
    for kind, rows in (("dense", 64), ("dense", 1024), ("conv", 32)):
        model, optimizer = network(kind), keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)
        x = tf.constant(np.random.default_rng(0).random((rows, *model.input_shape[1:]), "float32"))
        timed = {
            "whole": functools.partial(step, model, model.call, optimizer, x),
            "shared": functools.partial(step, model, model, optimizer, x),
            "forward": functools.partial(model.call, x[: rows // matex_tf.size()]),
        }
        times: dict[str, list[float]] = {name: [] for name in timed}
        for turn in range(rounds + WARM_UP):
            for name, run in timed.items():
                matex_tf.barrier()
                begin = time.perf_counter()
                run()
                matex_tf.barrier()
                if turn >= WARM_UP:
                    times[name].append(1e3 * (time.perf_counter() - begin))
        whole, shared, forward = (statistics.median(times[name]) for name in timed)
        if matex_tf.rank() == 0:
            ratio = f"{shared:6.1f} ms {shared / whole:6.2f}"
            print(f"{kind:8} {rows:5} {whole:6.1f} ms {ratio}   {3 * forward:6.1f} ms")


main()
