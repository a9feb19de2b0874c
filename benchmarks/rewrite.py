"""What reading and copying a training step cost beside tracing it: `python benchmarks/rewrite.py [--rounds 5]`.

Keras' own train step of ResNet-50 and of a transformer of 12 layers, one process, no MPI. Seconds to trace it, to read
its graph into a program, and to copy the program with stand-ins for the collectives; medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf
from keras import layers

from matex_tf.rewrite.emit import Copy
from matex_tf.rewrite.kept import trace_copy
from matex_tf.rewrite.placement import BATCH, WHOLE
from matex_tf.rewrite.propagate import read_program
from matex_tf.rewrite.sharing import Slice


def make_resnet():
    return keras.applications.ResNet50(weights=None, classes=10, input_shape=(32, 32, 3)), (32, 32, 3)


def make_transformer():
    inputs = keras.Input((32, 64))
    found = inputs
    for _ in range(12):
        attended = layers.MultiHeadAttention(4, 16)(found, found)
        found = layers.LayerNormalization()(found + layers.Dropout(0.1)(attended))
        wide = layers.Dense(64)(layers.Dense(256, "gelu")(found))
        found = layers.LayerNormalization()(found + layers.Dropout(0.1)(wide))
    outputs = layers.Dense(10, "softmax")(layers.GlobalAveragePooling1D()(found))
    return keras.Model(inputs, outputs), (32, 64)


CASES = [
    ("ResNet-50, SGD", make_resnet, lambda: keras.optimizers.SGD(0.1, momentum=0.9)),
    ("ResNet-50, Adam", make_resnet, keras.optimizers.Adam),
    ("transformer, Adam", make_transformer, keras.optimizers.Adam),
]


class StandIns:
    """In the place of each wave of collectives one op."""

    rank, sums_early = 0, False

    def __init__(self):
        self.waves = 0

    def exchange(self, requests, batch_slice, *_):
        self.waves += 1
        return tf.identity_n([one.tensor for one in requests])


def copy_program(program, graph):
    """The graph of the copy, and the waves of its collectives."""
    exchanger = StandIns()
    with tf.Graph().as_default():
        specs = [tf.TensorSpec(one.shape, one.dtype) for one in graph.inputs]

    def build(first, count, total, contributes, *inputs):
        copy = Copy(Slice(first, count, total, contributes, tf.equal(first, 0)), exchanger)
        return copy.build(program, inputs)

    batch_slice = [tf.TensorSpec([], tf.int64)] * 3 + [tf.TensorSpec([], tf.bool)]
    return trace_copy(build, [*batch_slice, *specs]).graph, exchanger.waves


def measure_step(name, make_model, make_optimizer, rounds):
    model, shape = make_model()
    model.compile(make_optimizer(), "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    model._symbolic_build(data_batch=(tf.zeros([2, *shape]), tf.zeros([2], tf.int64)))
    specs = tf.TensorSpec([None, *shape]), tf.TensorSpec([None], tf.int64)
    times = []
    for _ in range(rounds):
        starts = [time.process_time()]
        step = tf.function(lambda x, y: model.train_step((x, y)), autograph=False)
        graph = step.get_concrete_function(*specs).graph
        starts.append(time.process_time())
        program = read_program(graph, [BATCH] * 2 + [WHOLE] * len(graph.captures))
        starts.append(time.process_time())
        made, waves = copy_program(program, graph)
        starts.append(time.process_time())
        times.append([end - start for start, end in zip(starts, starts[1:])])
    traced, read, copied = (statistics.median(column) for column in zip(*times))
    counts = f"{len(graph.get_operations()):>8}{len(made.get_operations()):>8}{waves:>7}"
    print(f"{name:<20}{counts}{traced:>9.2f}{read:>8.2f}{copied:>8.2f}{(read + copied) / traced:>8.0%}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(f"{'model':<20}{'ops':>8}{'copied':>8}{'waves':>7}{'trace s':>9}{'read s':>8}{'copy s':>8}{'ratio':>8}")
    for case in CASES:
        measure_step(*case, rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
