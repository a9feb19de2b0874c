"""Goes on after an element that fails, in a loop of its own; stores what each batch gives. Argument: the folder."""

import os
import sys

import numpy as np
import tensorflow as tf

rank = sys.modules["matex_tf"].rank() if "matex_tf" in sys.modules else 0
found = {}


def make(broken):
    def load(number):
        with tf.control_dependencies([tf.debugging.assert_none_equal(number, tf.constant(broken, tf.int64))]):
            return tf.cast(number, tf.float64) / 3

    return tf.data.Dataset.range(64).map(load).batch(8)


for broken in (13, 20, 29, 38):  # in the second to the fifth batch
    for epoch, iterator in enumerate(map(iter, [make(broken)] * 2)):
        given = found[f"{broken}, {epoch}"] = []
        while len(given) < 9:
            try:
                given.append(float(tf.reduce_sum(next(iterator))))
            except StopIteration:
                given.append(-1.0)
            except tf.errors.InvalidArgumentError:
                given.append(-2.0)
np.savez(os.path.join(sys.argv[1], f"rank-{rank}.npz"), **found)
