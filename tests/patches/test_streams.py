"""Rule 9: ranks draw their own random numbers for their slices, and the same ones for everything else."""

from __future__ import annotations

import keras

import launch

SCRIPT = """
import sys
import keras
import numpy as np
import tensorflow as tf

import matex_tf
from matex_tf.analysis import verdict

verdict._HARMLESS += ("PyFunc",)  # looking is none of the script's
kept, masks = [], []

class Look(keras.layers.Layer):
    def call(self, x):
        def note(value):
            masks.append(value[0].tobytes())
            return np.int64(0)
        with tf.control_dependencies([tf.numpy_function(note, [x], tf.int64)]):
            return tf.identity(x)

keras.utils.set_random_seed(3)
x = np.ones((12, 50), "float32")
model = keras.Sequential([keras.Input((50,)), keras.layers.Dropout(0.5), Look(), keras.layers.Dense(2)])
model.compile("sgd", "mse")
model.fit(x, np.zeros((12, 2), "float32"), batch_size=6, epochs=2, verbose=0)
own = tuple(masks)
masks.clear()
model(x, training=True)
flip = keras.layers.RandomFlip(seed=1)
images = tf.data.Dataset.from_tensor_slices(np.arange(800.0).reshape(50, 4, 4, 1)).map(lambda i: flip(i, training=True))
shared = (tuple(masks), tuple(i.numpy().tobytes() for i in images), np.random.rand(), tf.random.uniform([]).numpy())
for what in (own, shared):
    texts = matex_tf.runtime.objects.allgather(repr(what), "comparing random numbers")
    print(len(set(texts)))
print(len(own), len(set(own)))
"""


def test_a_slice_has_random_numbers_of_its_own():
    result = launch.run(3, SCRIPT).check()
    # Keras 2 draws by stateful ops, whose seeds are part of the graph.
    different = 3 if keras.__version__.startswith("3") else 1
    assert result.stdout.split() == [str(different), "1", "4", "4"], result.output
