"""Keras 2: train_step with compiled_loss and compiled_metrics, and a VAE with model.add_loss."""

import numpy as np
import tensorflow as tf
from tensorflow import keras


class CustomModel(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compiled_loss(y, y_pred, regularization_losses=self.losses)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.compiled_metrics.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


x, y = np.random.random((100, 8)), np.random.random((100, 1))
inputs = keras.Input(shape=(8,))
outputs = keras.layers.Dense(1, kernel_regularizer="l2")(inputs)
model = CustomModel(inputs, outputs)
model.compile(optimizer="adam", loss="mse", metrics=["mae"])
history = model.fit(x, y, epochs=2, batch_size=32, verbose=2)

code_in = keras.Input(shape=(8,))
code = keras.layers.Dense(3, activation="tanh")(code_in)
decoded = keras.layers.Dense(8)(code)
autoencoder = keras.Model(code_in, decoded)
autoencoder.add_loss(tf.reduce_mean(tf.square(code_in - decoded)))
autoencoder.add_metric(tf.reduce_mean(tf.abs(code)), name="activity")
autoencoder.compile(optimizer="adam")
own = autoencoder.fit(x, epochs=2, batch_size=32, verbose=2)
