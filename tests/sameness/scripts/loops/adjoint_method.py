"""A block that solves an equation, with the adjoint method as its gradient: a tape within that of the step."""

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

STEPS, WIDTH = 6, 0.1
x = np.random.RandomState(0).randn(120, 4)
y = (np.linalg.norm(x, axis=1) > 1.8).astype(float)[:, None]


class Flow(layers.Layer):
    def __init__(self):
        super().__init__()
        self.field = layers.Dense(4, activation="tanh")

    def build(self, shape):
        self.field.build(shape)
        self.built = True

    def call(self, start):
        @tf.custom_gradient
        def solve(state):
            for _ in range(STEPS):
                state = state + WIDTH * self.field(state)
            end = state

            def gradient(upstream, variables=None):
                adjoint, state = upstream, end
                totals = [tf.zeros_like(one) for one in variables]
                for _ in range(STEPS):
                    with tf.GradientTape() as tape:
                        tape.watch(state)
                        change = self.field(state)
                    back, *parts = tape.gradient(change, [state, *variables], output_gradients=adjoint)
                    state = state - WIDTH * change
                    adjoint = adjoint + WIDTH * back
                    totals = [total + WIDTH * part for total, part in zip(totals, parts)]
                return adjoint, totals

            return end, gradient

        return solve(start)


def network():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((4,))
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid")(Flow()(inputs)))


model = network()
model.compile(keras.optimizers.SGD(0.5), "binary_crossentropy")
print("fit: %.6f" % model.fit(x, y, batch_size=20, epochs=2, verbose=0).history["loss"][-1])

other = network()
optimizer = keras.optimizers.SGD(0.5)
loss_fn = keras.losses.BinaryCrossentropy()


def step(inputs, targets):
    with tf.GradientTape() as tape:
        loss = loss_fn(targets, other(inputs, training=True))
    gradients = tape.gradient(loss, other.trainable_variables)
    optimizer.apply_gradients(zip(gradients, other.trainable_variables))
    return loss


for take in (step, tf.function(step)):
    for inputs, targets in tf.data.Dataset.from_tensor_slices((x, y)).batch(20):
        loss = take(inputs, targets)
    print("loop: %.6f" % float(loss))
