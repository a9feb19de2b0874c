"""add_loss and regularizers in layers; the activity's mean and its sum."""

import keras
import numpy as np
from keras import layers, ops


class ActivityRegularizationLayer(layers.Layer):
    def call(self, inputs):
        self.add_loss(0.1 * ops.mean(ops.square(inputs)))
        return inputs


class SumRegularizationLayer(layers.Layer):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def call(self, inputs):
        self.add_loss(self.rate * ops.sum(ops.abs(inputs)))
        return inputs


x = np.random.RandomState(2).rand(100, 8)
y = x.mean(axis=1, keepdims=True)
inputs = keras.Input(shape=(8,), name="digits")
h = layers.Dense(6, activation="tanh", kernel_regularizer="l2")(inputs)
h = ActivityRegularizationLayer()(h)
h = SumRegularizationLayer(1e-2)(h)
outputs = layers.Dense(1, kernel_regularizer=keras.regularizers.L1(1e-3))(h)
model = keras.Model(inputs, outputs)
model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
history = model.fit(x, y, epochs=3, batch_size=16, verbose=2)

labelled = keras.Model(inputs, outputs)


class OwnLoss(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, inputs):
        x, targets = inputs
        out = self.dense(x)
        self.add_loss(ops.mean(ops.square(out - targets)))
        return out


endpoint = OwnLoss()
endpoint.compile(optimizer="adam")
own_history = endpoint.fit((x, y), epochs=2, batch_size=30, verbose=2)
