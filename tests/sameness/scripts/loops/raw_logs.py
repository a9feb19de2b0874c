"""Steps that return figures which no metric has averaged: those of the last batch, as in many a tutorial on fit."""

import keras
import numpy as np
import tensorflow as tf

x = np.random.RandomState(1).rand(70, 5)
y = x.sum(axis=1, keepdims=True)


class Raw(keras.Model):
    def figures(self, inputs, targets):
        predictions = self(inputs)
        error = tf.square(targets - predictions)
        return {
            "error": tf.reduce_mean(error),
            "near": tf.reduce_mean(tf.cast(error < 0.1, error.dtype)),
            "total": tf.reduce_sum(error),
        }

    def train_step(self, data):
        inputs, targets = data
        with tf.GradientTape() as tape:
            figures = self.figures(inputs, targets)
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(figures["error"], weights), weights))
        return figures

    def test_step(self, data):
        return self.figures(*data)


class Decide(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs):
        print("epoch", epoch, {key: round(float(value), 6) for key, value in sorted(logs.items())})
        if logs["val_error"] < 0.05:
            self.model.stop_training = True


inputs = keras.Input((5,))
model = Raw(inputs, keras.layers.Dense(1)(keras.layers.Dense(6, activation="tanh")(inputs)))
model.compile(keras.optimizers.Adam(0.05))
history = model.fit(x, y, batch_size=16, epochs=6, validation_data=(x[:25], y[:25]), callbacks=[Decide()], verbose=2)
print(
    "evaluated",
    {key: round(float(value), 6) for key, value in model.evaluate(x, y, return_dict=True, verbose=0).items()},
)
