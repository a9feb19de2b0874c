"""Functions of one's own as parts of layers, each of which lets the rows of a batch meet; penalties on activities."""

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

rng = np.random.RandomState(3)
x = rng.randn(64, 5)
y = (x[:, 0] > 0).astype(float)


def standardised(z):
    return (z - tf.reduce_mean(z, 0)) / (tf.math.reduce_std(z, 0) + 1e-3)


def decorrelated(z):
    z = z - tf.reduce_mean(z, 0)
    table = tf.matmul(z, z, transpose_a=True) / tf.cast(tf.shape(z)[0], z.dtype)
    return 0.1 * tf.reduce_sum(tf.square(table - tf.linalg.diag(tf.linalg.diag_part(table))))


class SparseActivity(keras.regularizers.Regularizer):
    def __init__(self, target=0.1, weight=0.5):
        self.target = target
        self.weight = weight

    def __call__(self, inputs):
        mean = tf.reduce_mean(tf.sigmoid(inputs), axis=0)
        apart = self.target * tf.math.log(self.target / mean)
        apart += (1 - self.target) * tf.math.log((1 - self.target) / (1 - mean))
        return self.weight * tf.reduce_sum(apart)


def centred(h):
    return h - (keras.ops.mean(h, axis=0) if hasattr(keras, "ops") else tf.reduce_mean(h, axis=0))


parts = {
    "activation": lambda h: layers.Dense(6, activation=standardised)(h),
    "decorrelated": lambda h: layers.Dense(6, activity_regularizer=decorrelated)(h),
    "sparse": lambda h: layers.Dense(6, activity_regularizer=SparseActivity())(h),
    "softmax": lambda h: layers.Softmax(axis=0)(layers.Dense(6)(h)),
    "function": lambda h: centred(layers.Dense(6)(h)),
}
for name, part in parts.items():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5,))
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(part(inputs)))
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    print(name, "%.6f" % history.history["loss"][-1], "%.6f" % model.evaluate(x, y, batch_size=16, verbose=0))
