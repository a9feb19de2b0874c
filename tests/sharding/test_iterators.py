"""Iterators that are dropped end aside: what ends with them still does, and so does the process."""

from __future__ import annotations

import launch

SCRIPT = """
import gc, time
import numpy as np
import tensorflow as tf

ended = []

def numbers():
    try:
        for number in range(1000):
            yield np.float32(number)
    finally:
        ended.append(1)

def half(number):
    return np.float32(number / 2)

for _ in range(3):
    dataset = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec((), tf.float32))
    dataset = dataset.map(lambda x: tf.numpy_function(half, [x], tf.float32), num_parallel_calls=4).prefetch(2)
    for i, value in enumerate(dataset):
        if i == 5:
            break
    del value, dataset
gc.collect()
limit = time.monotonic() + 20
while len(ended) < 3 and time.monotonic() < limit:
    time.sleep(0.01)
print("ended", len(ended))
dataset = tf.data.Dataset.range(10**6).map(lambda x: tf.numpy_function(half, [x], tf.float32), num_parallel_calls=2)
for _ in dataset.prefetch(4):
    break
"""


def test_dropped_iterators_end_their_generators():
    result = launch.run(2, SCRIPT)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["ended", "3"]
    assert "Traceback" not in result.stderr and "finaliz" not in result.stderr, result.stderr
