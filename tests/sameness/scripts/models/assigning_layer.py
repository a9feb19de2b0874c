"""Layers that assign to their own variables: a running sum, a moving average of activations, a counter of steps."""

import keras
import numpy as np
import tensorflow as tf


class RunningTotal(keras.layers.Layer):
    def build(self, input_shape):
        self.total = self.add_weight(shape=(input_shape[-1],), initializer="zeros", trainable=False, name="total")
        self.calls = self.add_weight(shape=(), initializer="zeros", dtype="int64", trainable=False, name="calls")

    def call(self, inputs, training=False):
        if training:
            self.total.assign_add(tf.reduce_sum(inputs, axis=0))
            self.calls.assign_add(1)
        return inputs


x = np.random.RandomState(0).rand(90, 4)
model = keras.Sequential([keras.Input((4,)), RunningTotal(), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(x, x.sum(axis=1, keepdims=True), epochs=2, batch_size=30, verbose=2)
print("calls", int(model.layers[0].calls))
