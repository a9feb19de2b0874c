"""A model with a train_step of its own, as in the guide: compute_loss, trackers, sample weights, test_step."""

import keras
import numpy as np
import tensorflow as tf


class CustomModel(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")
        self.loss_fn = keras.losses.MeanSquaredError()

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.loss_fn(y, y_pred)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply(gradients, self.trainable_weights)
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}

    @property
    def metrics(self):
        return [self.loss_tracker, self.mae_metric]


class WeightedModel(keras.Model):
    def train_step(self, data):
        if len(data) == 3:
            x, y, sample_weight = data
        else:
            sample_weight = None
            x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred, sample_weight=sample_weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred, sample_weight=sample_weight)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        loss = self.compute_loss(y=y, y_pred=y_pred)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


x = np.random.random((110, 12))
y = np.random.random((110, 1))
sw = np.random.random((110, 1))

inputs = keras.Input(shape=(12,))
first = CustomModel(inputs, keras.layers.Dense(1)(inputs))
first.compile(optimizer="adam")
one = first.fit(x, y, epochs=3, verbose=2)

inputs = keras.Input(shape=(12,))
second = WeightedModel(inputs, keras.layers.Dense(1)(inputs))
second.compile(optimizer="adam", loss="mse", metrics=["mae"])
two = second.fit(x, y, sample_weight=sw, epochs=3, verbose=2)
three = second.fit(x, y, epochs=1, validation_data=(x[:50], y[:50]), verbose=2)
print(second.evaluate(x, y, verbose=0))
