"""compile(run_eagerly=True) with Python in the model, and tf.config.run_functions_eagerly."""

import keras
import numpy as np
import tensorflow as tf


class Debugged(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(8, activation="tanh")
        self.second = keras.layers.Dense(1)
        self.largest = 0.0

    def call(self, inputs):
        hidden = self.first(inputs)
        if hasattr(hidden, "numpy"):
            self.largest = max(self.largest, float(np.abs(hidden.numpy()).max()))
        return self.second(hidden)


x = np.random.RandomState(1).rand(70, 5)
y = x[:, :1] * 2
model = Debugged()
model.compile("adam", "mse", metrics=["mae"], run_eagerly=True)
history = model.fit(x, y, epochs=2, batch_size=16, verbose=2)
print("largest is less than one:", model.largest < 1)

tf.config.run_functions_eagerly(True)
weights = tf.Variable(np.zeros([5, 1]))


@tf.function
def step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(a @ weights - b))
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


for a, b in tf.data.Dataset.from_tensor_slices((x, y)).batch(16):
    loss = step(a, b)
print("loss %.5f" % loss)
tf.config.run_functions_eagerly(False)
