"""Metrics of one's own: functions that give one number for a batch, and classes that keep means, tables or others."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

rng = np.random.RandomState(2)
x = rng.randn(70, 5)
y = (x[:, :1] + 0.4 * rng.randn(70, 1) > 0).astype(float)


def rmse(y_true, y_pred):
    return tf.sqrt(tf.reduce_mean(tf.square(y_true - y_pred)))


def worst(y_true, y_pred):
    return tf.reduce_max(tf.abs(y_true - y_pred))


def mae(y_true, y_pred):
    return tf.reduce_mean(tf.abs(y_true - y_pred))


def sensitivity(y_true, y_pred):
    found = tf.reduce_sum(tf.round(y_pred) * y_true)
    return found / (tf.reduce_sum(y_true) + keras.backend.epsilon())


class MeanOfBatches(keras.metrics.Metric):
    def __init__(self, name="mean_of_batches", **kwargs):
        super().__init__(name=name, **kwargs)
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_mean(tf.abs(y_true - y_pred)))
        self.count.assign_add(1.0)

    def result(self):
        return self.total / self.count

    def reset_state(self):
        self.total.assign(0.0)
        self.count.assign(0.0)


class Kappa(keras.metrics.Metric):
    def __init__(self, name="kappa", **kwargs):
        super().__init__(name=name, **kwargs)
        self.table = self.add_weight(name="table", shape=(2, 2), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels, found = (tf.reshape(tf.cast(part > 0.5, tf.int32), [-1]) for part in (y_true, y_pred))
        self.table.assign_add(tf.cast(tf.math.confusion_matrix(labels, found, 2), self.table.dtype))

    def result(self):
        table = self.table / tf.reduce_sum(self.table)
        chance = tf.reduce_sum(tf.reduce_sum(table, 0) * tf.reduce_sum(table, 1))
        return (tf.linalg.trace(table) - chance) / (1 - chance)

    def reset_state(self):
        self.table.assign(tf.zeros((2, 2), self.table.dtype))


class F1(keras.metrics.Metric):
    def __init__(self, name="f1", **kwargs):
        super().__init__(name=name, **kwargs)
        self.precision, self.recall = keras.metrics.Precision(), keras.metrics.Recall()

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.precision.update_state(y_true, y_pred)
        self.recall.update_state(y_true, y_pred)

    def result(self):
        p, r = self.precision.result(), self.recall.result()
        return 2 * p * r / (p + r + keras.backend.epsilon())

    def reset_state(self):
        self.precision.reset_state()
        self.recall.reset_state()


model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1, "sigmoid")])
model.compile(
    keras.optimizers.SGD(0.2),
    "binary_crossentropy",
    metrics=[rmse, worst, mae, sensitivity, MeanOfBatches(), Kappa(), F1()],
)
history = model.fit(x, y, batch_size=20, epochs=2, verbose=0, validation_split=0.2)
figures = {name: [float(value) for value in values] for name, values in history.history.items()}
for name, values in figures.items():
    print(name, " ".join("%.5f" % value for value in values))
evaluated = [float(value) for value in model.evaluate(x, y, batch_size=32, verbose=0)]
